// Package tieringadmin asks tiering instances, through their admin ports, for their status and for checks of the object store,
// and prints what they answer.
//
// It owns the tables that a person sees. It must never compare anything itself: only the owner of a partition's remote segments
// can tell what belongs to it.
package tieringadmin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
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
	var errs []error
	for _, address := range of.Addresses {
		var some []tieringclient.PartitionStatus
		errs = append(errs, tieringclient.AskAdmin(ctx, http.MethodGet, address, tieringclient.StatusPath, nil, &some))
		all = append(all, some...)
	}
	slices.SortStableFunc(all, func(a, b tieringclient.PartitionStatus) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	if of.JSON {
		errs = append(errs, json.NewEncoder(out).Encode(all))
	} else {
		errs = append(errs, printStatus(out, all))
	}
	return errors.Join(errs...)
}

func printStatus(out io.Writer, all []tieringclient.PartitionStatus) error {
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

// CheckOptions say what Check looks at and changes.
type CheckOptions struct {
	// Repair deletes what the metadata does not know when it is older than OlderThan, ForgetMissing takes segments without an
	// object out of the metadata.
	Repair, ForgetMissing bool
	OlderThan             time.Duration
	// Verify reads every segment, FormerPrefixes are those that rsm.config.prefix had once.
	Verify         bool
	FormerPrefixes []string
}

// ErrDifferences says that store and metadata were compared, and that differences are left.
var ErrDifferences = errors.New("differences are left")

func (o *CheckOptions) query() (method string, q url.Values) {
	q = url.Values{"older-than": {o.OlderThan.String()}, "former-prefix": o.FormerPrefixes, "verify": {strconv.FormatBool(o.Verify)}}
	if !o.Repair && !o.ForgetMissing {
		return http.MethodGet, q
	}
	q.Set("repair", strconv.FormatBool(o.Repair))
	q.Set("forget-missing", strconv.FormatBool(o.ForgetMissing))
	return http.MethodPost, q
}

// Check prints how the store and the metadata differ. Its error is ErrDifferences when something is left to be repaired, and
// another one when not everything could be compared.
func Check(ctx context.Context, out io.Writer, of Instances, o CheckOptions) error {
	method, q := o.query()
	reports := []tieringclient.CheckReport{}
	var errs []error
	for _, address := range of.Addresses {
		var report tieringclient.CheckReport
		if err := tieringclient.AskAdmin(ctx, method, address, tieringclient.CheckPath, q, &report); err != nil {
			errs = append(errs, err)
			continue
		}
		report.Instance = address
		reports = append(reports, report)
	}
	left, err := summary(reports)
	errs = append(errs, err)
	if of.JSON {
		errs = append(errs, json.NewEncoder(out).Encode(reports))
	} else {
		errs = append(errs, printReports(out, reports))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("%w to be repaired: %d", ErrDifferences, left)
	}
	return nil
}

// summary counts the differences that are left, and says what was not compared.
func summary(reports []tieringclient.CheckReport) (left int, err error) {
	failures, shards, all := 0, 0, 0
	for _, r := range reports {
		failures += len(r.Errors)
		shards, all = shards+r.Shards, max(all, r.ShardsInAll)
		for _, d := range r.Differences {
			if !d.Repaired && d.Kind != "foreign" {
				left++
			}
		}
	}
	switch {
	case failures > 0:
		return left, fmt.Errorf("%d things could not be done", failures)
	case len(reports) > 0 && shards < all:
		return left, fmt.Errorf("%d of %d shards of the metadata were compared: name the admin ports of all tiering instances with --admin, and try again when none is starting", shards, all)
	}
	return left, nil
}

func printReports(out io.Writer, reports []tieringclient.CheckReport) error {
	w := table(out)
	head := "KIND\tSTATE\tPARTITION\tSEGMENT\tBYTES\tOBJECT\tDETAIL\n"
	for _, r := range reports {
		for _, d := range r.Differences {
			fmt.Fprint(w, head)
			head = ""
			state := "left"
			if d.Repaired {
				state = "repaired"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", d.Kind, state, partitionOf(&d), cmp.Or(d.Segment, "-"), d.Bytes, d.Key, d.Detail)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	var errs []error
	for _, r := range reports {
		for _, e := range r.Errors {
			_, err := fmt.Fprintf(out, "%s: error: %s\n", r.Instance, e)
			errs = append(errs, err)
		}
		_, err := fmt.Fprintf(out, "%s: %d of %d shards, %d segments, %d objects, %d differences, %d stale uploads\n",
			r.Instance, r.Shards, r.ShardsInAll, r.Segments, r.Objects, len(r.Differences), r.StaleUploads)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// partitionOf names the partition of a difference as well as it is known: the topic of an orphan may be gone.
func partitionOf(d *tieringclient.Difference) string {
	topic := cmp.Or(d.Topic, d.TopicID)
	if topic == "" {
		return "-"
	}
	return fmt.Sprintf("%s-%d", topic, d.Partition)
}
