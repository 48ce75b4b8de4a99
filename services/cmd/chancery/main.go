// Command chancery is every service of Chancery, all of them in one process, and a playground of real processes.
//
// It owns the command line: flags, exit codes and what is printed. It must never put services together itself; that is
// services/app.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"chancery/services/app/tieringadmin"
)

// version is set by the linker.
var version = "unknown"

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// exitDifferences is that of a check that found something to be repaired.
	exitDifferences = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the orderly end is under way; a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// failure is an error of a command that was understood; any other error is one of its usage.
type failure struct{ error }

// Unwrap gives the error itself.
func (f failure) Unwrap() error { return f.error }

func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	command, err := root.ExecuteContextC(ctx)
	var failed failure
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &failed):
		fmt.Fprintf(errOut, "%s: %v\n", command.CommandPath(), failed.error)
		if errors.Is(err, tieringadmin.ErrDifferences) {
			return exitDifferences
		}
		return exitFailed
	default:
		fmt.Fprintf(errOut, "%v\nSee '%s --help'.\n", err, command.CommandPath())
		return exitUsage
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "chancery",
		Short:         "A broker for Apache Kafka's protocol, split into services",
		Version:       versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := c.Help(); err != nil {
				return failure{err}
			}
			return errors.New("no command given")
		},
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SuggestionsMinimumDistance = 2
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(allCommand())
	for _, s := range services {
		root.AddCommand(serviceCommand(s))
	}
	root.AddCommand(playgroundCommand(), versionCommand())
	return root
}

// noArgs refuses arguments of a command that has none: most likely a subcommand was meant.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		text += ", did you mean " + strings.Join(near, " or ") + "?"
	}
	return errors.New(text)
}

// versionText is the product's version, and what it was built with and for.
func versionText() string {
	return fmt.Sprintf("%s (%s, %s/%s)", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "chancery %s\n", versionText())
			return orFailure(err)
		},
	}
}

func orFailure(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}
