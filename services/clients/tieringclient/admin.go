package tieringclient

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// The paths of the admin port that the command line asks.
const (
	StatusPath = "/tiering/status"
	CheckPath  = "/tiering/check"
)

// Difference is something that is in the store or in the metadata, but not in both, or not alike.
type Difference struct {
	// Kind is orphan (an object that the metadata does not know), missing (a segment without its object), short (an object
	// smaller than its segment), damaged (one whose bytes are not those that were copied), unfinished (a copy that was announced
	// and that nobody makes any more; the next pass over the partition deletes it), undeleted (a segment whose deletion has begun
	// and goes on failing) or foreign (an object that is no segment).
	Kind      string
	Topic     string
	TopicID   string
	Partition int32
	Segment   string
	Key       string
	Bytes     int64
	// Detail is more about it, for people.
	Detail string
	// Repaired says that it is gone.
	Repaired bool
}

// CheckReport is what Check found for the shards of this instance.
type CheckReport struct {
	// Instance is the admin port that was asked.
	Instance string
	// Shards are those that the instance answers for, ShardsInAll those that there are.
	Shards       int
	ShardsInAll  int
	Objects      int
	Segments     int
	StaleUploads int
	Differences  []Difference
	// Errors are parts of the work that could not be done.
	Errors []string
}

// PartitionStatus is how the remote tier of a partition is.
type PartitionStatus struct {
	Topic                       string
	Partition                   int32
	RemoteSegments, RemoteBytes int64
	CopyLagSegments             int64
	CopyLagBytes                int64
	// Reason is why segments wait to be copied, Failure what the last copy failed with, and Failures how many passes failed in a row.
	Reason, Failure   string
	DeleteLagSegments int64
	Failures          int
}

// AskAdmin asks the admin port of a tiering instance and decodes its answer.
func AskAdmin(ctx context.Context, method, address, path string, q url.Values, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+address+path+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%w: is this the admin port (admin.listeners) of a tiering instance?", err)
	}
	defer func() { _ = resp.Body.Close() }() // only read from
	if resp.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%s is not the admin port of a tiering instance with remote.log.storage.system.enable=true", address)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // what can be read of the reason is shown
		return fmt.Errorf("%s: %s: %s", address, resp.Status, strings.TrimSpace(string(text)))
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
