package main

import (
	"time"

	"github.com/spf13/cobra"

	"chancery/services/app/tieringadmin"
)

// instanceFlags name the admin ports of tiering instances.
func instanceFlags(c *cobra.Command, i *tieringadmin.Instances) {
	c.Flags().StringSliceVar(&i.Addresses, "admin", []string{"127.0.0.1:9644"}, "admin `HOST:PORT` of each tiering instance (admin.listeners)")
	c.Flags().BoolVar(&i.JSON, "json", false, "print JSON")
}

func tieringStatusCommand() *cobra.Command {
	var instances tieringadmin.Instances
	c := &cobra.Command{
		Use:   "status [--admin HOST:PORT,...] [--json]",
		Short: "Show what is remote, and what waits and why, of each tiered partition",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return orFailure(tieringadmin.Status(c.Context(), c.OutOrStdout(), instances))
		},
	}
	instanceFlags(c, &instances)
	return c
}

func tieringCheckCommand() *cobra.Command {
	var instances tieringadmin.Instances
	var o tieringadmin.CheckOptions
	c := &cobra.Command{
		Use:   "fsck [--admin HOST:PORT,...] [--repair] [--forget-missing] [--older-than 24h] [--verify] [--former-prefix PREFIX ...] [--json]",
		Short: "Compare the object store with the metadata, and repair differences",
		Long: "Compare the object store with the metadata. Each tiering instance answers for the partitions that it looks after, so name all of them.\n" +
			"Without --repair and --forget-missing nothing is changed; with them it has to run on the instances' own machines.\n\n" +
			"What it finds:\n" +
			"  orphan      an object that the metadata does not know; --repair deletes it\n" +
			"  missing     a segment without its object; --forget-missing takes it out of the metadata\n" +
			"  short       an object smaller than its segment\n" +
			"  damaged     an object whose bytes are not those that were copied (--verify)\n" +
			"  unfinished  a copy that nobody finishes; the next pass over the partition deletes it\n" +
			"  undeleted   a segment that the store goes on refusing to delete; see 'chancery tiering status'\n" +
			"  foreign     an object that is no segment; it is left alone, and does not count\n\n" +
			"Objects below an earlier rsm.config.prefix are only looked at with --former-prefix.\n\n" +
			"Exit code: 0 when nothing is left to be repaired, 3 when there are differences, 1 when not everything could be compared or done, 2 for a wrong command line.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return orFailure(tieringadmin.Check(c.Context(), c.OutOrStdout(), instances, o))
		},
	}
	instanceFlags(c, &instances)
	c.Flags().BoolVar(&o.Repair, "repair", false, "delete objects that the metadata does not know, and end uploads that were never finished")
	c.Flags().BoolVar(&o.ForgetMissing, "forget-missing", false, "forget segments whose object is not there: their offsets are out of range then")
	c.Flags().DurationVar(&o.OlderThan, "older-than", 24*time.Hour, "only delete what is older")
	c.Flags().BoolVar(&o.Verify, "verify", false, "read every segment and compare it with its checksums (within remote.log.manager.fetch.max.bytes.per.second)")
	c.Flags().StringArrayVar(&o.FormerPrefixes, "former-prefix", nil, "also compare objects below a `PREFIX` that rsm.config.prefix was once (\"\" for none); may be given again and again")
	return c
}
