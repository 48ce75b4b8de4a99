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
		Use:   "fsck [--admin HOST:PORT,...] [--repair] [--forget-missing] [--older-than 24h] [--json]",
		Short: "Compare the object store with the metadata, and repair differences",
		Long: "Compare the object store with the metadata. Each tiering instance answers for the partitions that it looks after, so name all of them.\n" +
			"Without --repair and --forget-missing nothing is changed. It fails when there are differences that were not repaired.\n" +
			"Objects under an rsm.config.prefix of earlier are not listed: what is no segment any more there, nobody finds.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return orFailure(tieringadmin.Check(c.Context(), c.OutOrStdout(), instances, o))
		},
	}
	instanceFlags(c, &instances)
	c.Flags().BoolVar(&o.Repair, "repair", false, "delete objects that the metadata does not know, and end uploads that were never finished")
	c.Flags().BoolVar(&o.ForgetMissing, "forget-missing", false, "forget segments whose object is not there: their offsets are out of range then")
	c.Flags().DurationVar(&o.OlderThan, "older-than", 24*time.Hour, "only delete what is older")
	return c
}
