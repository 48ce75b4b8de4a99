// Package tieringadmin asks tiering instances, through their admin ports, for their status and for checks of the object store,
// and prints what they answer.
//
// It owns the tables that a person sees. It must never compare anything itself: only the owner of a partition's remote segments
// can tell what belongs to it.
package tieringadmin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"chancery/services/clients/tieringclient"
)

// Instances are the admin ports of tiering instances, as host:port, and whether their answers are printed as JSON.
type Instances struct {
	Addresses []string
	JSON      bool
}

// Status prints how the remote tier of each partition is.
func Status(ctx context.Context, out io.Writer, of Instances) error {
	all := []tieringclient.PartitionStatus{}
	for _, address := range of.Addresses {
		var some []tieringclient.PartitionStatus
		if err := tieringclient.AskAdmin(ctx, http.MethodGet, address, tieringclient.StatusPath, nil, &some); err != nil {
			return err
		}
		all = append(all, some...)
	}
	if of.JSON {
		return json.NewEncoder(out).Encode(all)
	}
	w := table(out)
	fmt.Fprintln(w, "TOPIC\tPARTITION\tREMOTE SEGMENTS\tREMOTE BYTES\tCOPY LAG SEGMENTS\tCOPY LAG BYTES\tBEING DELETED\tREASON")
	for _, p := range all {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", p.Topic, p.Partition, p.RemoteSegments, p.RemoteBytes, p.CopyLagSegments, p.CopyLagBytes,
			p.DeleteLagSegments, p.Reason)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, p := range all {
		if p.Failure != "" {
			fmt.Fprintf(out, "%s-%d failed %d times in a row, at last: %s\n", p.Topic, p.Partition, p.Failures, p.Failure)
		}
	}
	return nil
}

func table(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }

// CheckOptions say what Check changes.
type CheckOptions struct {
	// Repair deletes what the metadata does not know when it is older than OlderThan, ForgetMissing takes segments without an
	// object out of the metadata.
	Repair, ForgetMissing bool
	OlderThan             time.Duration
}

// Check prints how the store and the metadata differ. Its error says that something is left to be repaired.
func Check(ctx context.Context, out io.Writer, of Instances, o CheckOptions) error {
	q := url.Values{"older-than": {o.OlderThan.String()}}
	method := http.MethodGet
	if o.Repair || o.ForgetMissing {
		method = http.MethodPost
		q.Set("repair", strconv.FormatBool(o.Repair))
		q.Set("forget-missing", strconv.FormatBool(o.ForgetMissing))
	}
	left := 0
	for _, address := range of.Addresses {
		var report tieringclient.CheckReport
		if err := tieringclient.AskAdmin(ctx, method, address, tieringclient.CheckPath, q, &report); err != nil {
			return err
		}
		if err := printReport(out, of.JSON, address, &report); err != nil {
			return err
		}
		left += len(report.Errors)
		for _, d := range report.Differences {
			if !d.Repaired && d.Kind != "foreign" {
				left++
			}
		}
	}
	if left > 0 {
		return fmt.Errorf("%d differences or errors are left", left)
	}
	return nil
}

func printReport(out io.Writer, asJSON bool, address string, r *tieringclient.CheckReport) error {
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	w := table(out)
	for _, d := range r.Differences {
		state := "left"
		if d.Repaired {
			state = "repaired"
		}
		fmt.Fprintf(w, "%s\t%s\t%s-%d\t%s\t%d bytes\t%s\n", d.Kind, state, d.Topic, d.Partition, d.Segment, d.Bytes, d.Key)
	}
	for _, e := range r.Errors {
		fmt.Fprintf(w, "error\t%s\n", e)
	}
	fmt.Fprintf(w, "%s: %d shards, %d segments, %d objects, %d differences, %d stale uploads (under the present rsm.config.prefix; objects of an earlier one are not listed)\n", address, r.Shards, r.Segments, r.Objects, len(r.Differences), r.StaleUploads)
	return w.Flush()
}
