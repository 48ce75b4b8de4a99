//go:build !linux

package server

import "chancery/services/storage"

// canSendfile says that this system does not send regions of files by itself here: they are copied.
const canSendfile = false

func (w *responseWriter) writeMore() error { return w.write(false) }

func (w *responseWriter) sendfile(f *storage.FileRegion) error { return w.copyRegion(f) }
