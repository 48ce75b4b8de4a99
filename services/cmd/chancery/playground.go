package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"chancery/services/app/playground"
	"chancery/services/config"
)

func playgroundCommand() *cobra.Command {
	var flags settingFlags
	var shape playground.Config
	c := &cobra.Command{
		Use:   "playground [--storage N] [--gateways N] [--controllers N] [--coordinators N] [--tiering N] [--log-dirs N] --data DIR --base-port N [--config FILE] [--set key=value ...]",
		Short: "Run a cluster of real processes on this machine",
		Long: "Run a cluster of real processes on this machine, in the foreground. The processes are called controller-1, storage-1, gateway-1,\n" +
			"coordinator-1, tiering-1 and so on, and can be killed, stopped, paused and started again by name.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if shape.LogDirs < 1 {
				return fmt.Errorf("--log-dirs %d: must be at least 1", shape.LogDirs)
			}
			if err := shape.Validate(); err != nil {
				return err
			}
			// What is wrong is told here once, and not by each process.
			if _, err := config.Load(flags.file, flags.sets); err != nil {
				return failure{err}
			}
			return orFailure(runPlayground(c, shape, flags))
		},
	}
	f := c.Flags()
	f.IntVar(&shape.Storage, "storage", 3, "number of storage nodes")
	f.IntVar(&shape.Gateways, "gateways", 2, "number of gateways")
	f.IntVar(&shape.Controllers, "controllers", 3, "number of controllers: an odd one")
	f.IntVar(&shape.Coordinators, "coordinators", 2, "number of coordinators")
	f.IntVar(&shape.Tiering, "tiering", 1, "number of tiering instances")
	f.IntVar(&shape.LogDirs, "log-dirs", 1, "number of log directories of each storage node")
	f.StringVar(&shape.Dir, "data", "playground", "`DIR` for everything that the processes write")
	f.IntVar(&shape.BasePort, "base-port", 9092, "first of a row of ports; the gateways' Kafka listeners have the first ones")
	flags.add(c)
	c.AddCommand(statusCommand(), downCommand())
	for _, command := range []struct{ name, short string }{
		{playground.Kill, "End a process at once (SIGKILL)"},
		{playground.Stop, "End a process in order (SIGTERM), and wait until it has ended"},
		{playground.Start, "Start a process that has ended"},
		{playground.Pause, "Halt a process (SIGSTOP)"},
		{playground.Resume, "Let a paused process go on (SIGCONT)"},
	} {
		c.AddCommand(processCommand(command.name, command.short))
	}
	return c
}

func runPlayground(c *cobra.Command, shape playground.Config, flags settingFlags) error {
	file, err := config.Load(flags.file, nil)
	if err != nil {
		return err
	}
	sets, err := config.Load("", flags.sets)
	if err != nil {
		return err
	}
	shape.Properties, shape.Overrides = file.Map(), sets.Map()
	if shape.Binary, err = os.Executable(); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	return playground.Run(c.Context(), shape, c.OutOrStdout(), logger)
}

// dataFlag names the folder of a playground that runs.
func dataFlag(c *cobra.Command) *string {
	return c.Flags().String("data", "playground", "`DIR` of the playground")
}

func processCommand(name, short string) *cobra.Command {
	c := &cobra.Command{
		Use:   name + " NAME --data DIR",
		Short: short,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("want the name of one process, such as storage-1; got %d names", len(args))
			}
			return nil
		},
	}
	dir := dataFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return orFailure(playground.Command(c.Context(), *dir, name, args[0]))
	}
	return c
}

func downCommand() *cobra.Command {
	c := &cobra.Command{Use: "down --data DIR", Short: "End the playground", Args: noArgs}
	dir := dataFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return orFailure(playground.Down(c.Context(), *dir))
	}
	return c
}

func statusCommand() *cobra.Command {
	c := &cobra.Command{Use: "status [--json] --data DIR", Short: "Show the processes", Args: noArgs}
	dir := dataFlag(c)
	asJSON := c.Flags().Bool("json", false, "print JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return orFailure(printStatus(c.Context(), c.OutOrStdout(), *dir, *asJSON))
	}
	return c
}

func printStatus(ctx context.Context, w io.Writer, dir string, asJSON bool) error {
	processes, err := playground.Status(ctx, dir)
	if err != nil {
		return err
	}
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(processes)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var errs []error
	for _, p := range processes {
		var addresses []string
		for _, k := range slices.Sorted(maps.Keys(p.Addresses)) {
			addresses = append(addresses, k+"="+p.Addresses[k])
		}
		pid := "-"
		if p.PID != 0 {
			pid = fmt.Sprint(p.PID)
		}
		_, err := fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", p.Name, p.Service, pid, strings.Join(addresses, " "), p.State)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, tw.Flush())...)
}
