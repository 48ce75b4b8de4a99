package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"chancery/services/app"
	"chancery/services/config"
	"chancery/services/telemetry"
)

// service is a subcommand that runs one service.
type service struct {
	target app.Target
	short  string
}

var services = []service{
	{app.Gateway, "Run a gateway, which speaks Kafka's protocol with clients"},
	{app.Storaged, "Run a storage node, which keeps replicas of partitions"},
	{app.Controllerd, "Run a controller, which keeps the cluster's metadata"},
	{app.Coordinatord, "Run a coordinator, which looks after groups"},
	{app.Tiering, "Run a tiering instance, which looks after the object store"},
}

// settingFlags are the flags that every service takes.
type settingFlags struct {
	file string
	sets []string
}

func (f *settingFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "config", "", "properties `FILE` with Kafka's names of settings")
	c.Flags().StringArrayVar(&f.sets, "set", nil, "a setting as `key=value`, over the file; may be given again and again")
}

func serviceCommand(s service) *cobra.Command {
	var flags settingFlags
	c := &cobra.Command{
		Use:   string(s.target) + " --config FILE.properties [--set key=value ...]",
		Short: s.short,
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if flags.file == "" && len(flags.sets) == 0 {
				return errors.New("want --config FILE.properties, or settings with --set")
			}
			settings, err := config.Load(flags.file, flags.sets)
			if err != nil {
				return failure{err}
			}
			return orFailure(run(c, s.target, settings, ""))
		},
	}
	flags.add(c)
	if s.target == app.Tiering {
		c.AddCommand(tieringStatusCommand(), tieringCheckCommand())
	}
	return c
}

func allCommand() *cobra.Command {
	var flags settingFlags
	var dir, listen string
	c := &cobra.Command{
		Use:   "all [--data DIR] [--kafka-listen HOST:PORT] [--config FILE.properties] [--set key=value ...]",
		Short: "Run everything in this process",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			settings, err := config.Load(flags.file, flags.sets)
			if err != nil {
				return failure{err}
			}
			err = app.CompleteAll(settings, app.AllFlags{
				Dir: dir, DirGiven: c.Flags().Changed("data"),
				KafkaListen: listen, KafkaListenGiven: c.Flags().Changed("kafka-listen"),
			})
			if err != nil {
				return failure{err}
			}
			return orFailure(run(c, app.All, settings, dir))
		},
	}
	c.Flags().StringVar(&dir, "data", "data", "`DIR` for everything that is kept")
	c.Flags().StringVar(&listen, "kafka-listen", "127.0.0.1:9092", "`HOST:PORT` for Kafka clients")
	flags.add(c)
	return c
}

// run runs a target until the command's context ends, and prints one line when it is ready.
func run(c *cobra.Command, target app.Target, settings *config.Settings, dir string) error {
	node := settings.Node()
	logger, level, err := telemetry.NewLogger(c.ErrOrStderr(), node.String("log.level"), node.String("log.format"))
	if err != nil {
		return err
	}
	warnWithoutEffect(logger, settings)
	options := app.Options{Target: target, Settings: settings, Version: version, Logger: logger, LogLevel: level}
	return app.Run(c.Context(), options, func(p *app.Process) {
		// A closed standard output is no reason to end.
		_, _ = fmt.Fprintln(c.OutOrStdout(), readyLine(target, p, dir))
	})
}

// warnWithoutEffect says loudly which settings for access control are taken but not obeyed: nobody should believe to be
// protected who is not.
func warnWithoutEffect(logger *slog.Logger, settings *config.Settings) {
	for _, key := range []string{"authorizer.class.name", "super.users", "delegation.token.secret.key"} {
		if v, ok := settings.Get(key); ok && v != "" {
			logger.Warn("this setting has no effect: access control is not available in this version, and every client may do everything",
				"key", key, "where", settings.Where(key))
		}
	}
}

// readyLine says where the process can be reached.
func readyLine(target app.Target, p *app.Process, dir string) string {
	name := "chancery"
	if target != app.All {
		name += " " + string(target)
	}
	var parts []string
	if kafka := p.KafkaAddresses(); len(kafka) > 0 {
		parts = append(parts, "Kafka on "+strings.Join(kafka, ","))
	}
	if grpc := p.GRPCAddress(); grpc != "" {
		parts = append(parts, "other services on "+grpc)
	}
	if admin := p.AdminAddress(); admin != "" {
		parts = append(parts, "admin on http://"+admin)
	}
	if dir != "" {
		parts = append(parts, "data in "+dir)
	}
	return name + " is ready: " + strings.Join(parts, ", ")
}
