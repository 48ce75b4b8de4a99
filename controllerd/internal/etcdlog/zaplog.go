package etcdlog

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// harmless are messages of etcd that are part of every start, or that repeat what another one says once: a peer that goes is
// told of by "peer became inactive".
var harmless = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
	"Failed to detect schema version":                                                      true,
	"failed to update storage version":                                                     true,
	"lost TCP streaming connection with remote peer":                                       true,
	"closed TCP streaming connection with remote peer":                                     true,
	"prober detected unhealthy status":                                                     true,
	"failed to reach the peer URL":                                                         true,
	"failed to get version":                                                                true,
}

// newZapLogger gives etcd a logger that writes to ours. Instead of ending the process, a fatal message reports to fail and
// ends the goroutine that logged it: what that goroutine was about to acknowledge never is.
//
// While quiet is set, the end is near and its noise expected.
func newZapLogger(logger *slog.Logger, quiet *atomic.Bool, fail func(error)) *zap.Logger {
	return zap.New(slogCore{logger: logger, quiet: quiet}, zap.WithFatalHook(fatalHook{fail}))
}

type fatalHook struct{ fail func(error) }

func (h fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	h.fail(fmt.Errorf("etcd: %s%s", entry.Message, describe(fields)))
	runtime.Goexit()
}

// slogCore is a zapcore.Core that writes to a slog.Logger.
type slogCore struct {
	logger *slog.Logger
	quiet  *atomic.Bool
	fields []zapcore.Field
}

func (c slogCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel || c.logger.Enabled(context.Background(), slog.LevelDebug)
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	c.fields = append(c.fields[:len(c.fields):len(c.fields)], fields...)
	return c
}

func (c slogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(entry.Level) {
		return checked
	}
	return checked.AddCore(entry, c)
}

func (c slogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(encoder)
	}
	attrs := make([]slog.Attr, 0, len(encoder.Fields))
	for k, v := range encoder.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	c.logger.LogAttrs(context.Background(), c.levelOf(entry), "etcd: "+entry.Message, attrs...)
	return nil
}

func (slogCore) Sync() error { return nil }

func (c slogCore) levelOf(entry zapcore.Entry) slog.Level {
	switch {
	case c.quiet.Load() || harmless[entry.Message] || entry.Level < zapcore.WarnLevel:
		return slog.LevelDebug
	case entry.Level == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

func describe(fields []zapcore.Field) string {
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(encoder)
	}
	if err, ok := encoder.Fields["error"]; ok {
		return fmt.Sprintf(": %v", err)
	}
	return ""
}
