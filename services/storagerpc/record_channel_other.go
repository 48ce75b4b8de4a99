//go:build !linux

package storagerpc

import (
	"context"

	"chancery/services/transport"
)

func dialRecords(string, *transport.Pool) (*recordChannel, error) { return nil, errNoFilePassing }

func (c *recordChannels) listen(context.Context, string) error { return errNoFilePassing }
