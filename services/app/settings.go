package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"chancery/services/config"
	"chancery/services/kafka/configdef"
	"chancery/services/objectstore/registry"
	"chancery/services/transport"
)

// needed are the keys that a target cannot do without, and what to set where one is missing.
var needed = map[Target]map[string]string{
	All:          {"log.dirs": "a folder, as with --data", "metadata.log.dir": "a folder, as with --data"},
	Gateway:      {"controller.quorum.bootstrap.servers": bootstrapHint},
	Storaged:     {"controller.quorum.bootstrap.servers": bootstrapHint, "grpc.listeners": grpcHint, "log.dirs": "one or more folders"},
	Controllerd:  {"grpc.listeners": grpcHint, "metadata.log.dir": "a folder"},
	Coordinatord: {"controller.quorum.bootstrap.servers": bootstrapHint, "grpc.listeners": grpcHint},
	Tiering:      {"controller.quorum.bootstrap.servers": bootstrapHint, "grpc.listeners": grpcHint},
}

const (
	bootstrapHint = "the controllers' addresses for other services (their grpc.listeners), such as ctl1:9090,ctl2:9090"
	grpcHint      = "an address that other services can dial, such as 10.0.0.7:9090"
)

// AllFlags are the flags of a process that runs everything, and whether they were given or are the defaults.
type AllFlags struct {
	Dir              string
	DirGiven         bool
	KafkaListen      string
	KafkaListenGiven bool
}

// Where settings of a process that runs everything come from when nobody has set them one by one.
const (
	dataFlag   = "--data"
	allDefault = "default of chancery all"
)

// CompleteAll completes the settings of a process that runs everything. A flag that is given wins over the properties
// file, and a single setting of the command line over the flag.
func CompleteAll(s *config.Settings, f AllFlags) error {
	if _, _, err := net.SplitHostPort(f.KafkaListen); err != nil {
		return fmt.Errorf("--kafka-listen %s: want host:port, such as 127.0.0.1:9092", f.KafkaListen)
	}
	if f.Dir == "" {
		return errors.New("--data is empty: want a folder for everything that is kept")
	}
	flag := func(key, value, name string, given bool) {
		if given && s.Where(key) != "--set" {
			s.Set(key, value, name)
		} else {
			s.SetDefault(key, value, name)
		}
	}
	flag("log.dirs", filepath.Join(f.Dir, "data"), dataFlag, f.DirGiven)
	flag("metadata.log.dir", filepath.Join(f.Dir, "metadata"), dataFlag, f.DirGiven)
	flag("listeners", "PLAINTEXT://"+f.KafkaListen, "--kafka-listen", f.KafkaListenGiven)
	s.SetDefault("node.id", "1", allDefault)
	s.SetDefault("log.level", "warn", allDefault)
	for _, key := range []string{
		"offsets.topic.replication.factor", "transaction.state.log.replication.factor", "transaction.state.log.min.isr",
		"share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.min.isr",
		"rlmm.config.remote.log.metadata.topic.replication.factor", "rlmm.config.remote.log.metadata.topic.min.isr",
	} {
		s.SetDefault(key, "1", allDefault)
	}
	completeStore(s, f.Dir)
	if _, ok := s.Get("admin.listeners"); !ok {
		s.Set("admin.listeners", freeAdminAddress(), allDefault)
	}
	return s.Check()
}

// completeStore lets closed segments go into a folder of their own, where tiered storage is on and no store is named.
func completeStore(s *config.Settings, dir string) {
	if !s.Node().Bool("remote.log.storage.system.enable") {
		return
	}
	s.SetDefault("remote.log.storage.manager.class.name", "dir", allDefault)
	if node := s.Node(); node.String("remote.log.storage.manager.class.name") == "dir" {
		s.SetDefault(node.String("remote.log.storage.manager.impl.prefix")+"dir.path", filepath.Join(dir, "remote"), allDefault)
	}
}

// adminAddress is where the admin port of `chancery all` is, unless it is set or taken.
const adminAddress = "127.0.0.1:9644"

// freeAdminAddress gives a second process on the machine another port; the line printed at the start says which.
func freeAdminAddress() string {
	l, err := net.Listen("tcp", adminAddress)
	if err != nil {
		return "127.0.0.1:0"
	}
	_ = l.Close()
	return adminAddress
}

// checkSettings says what a target misses, and which folders cannot be used.
func checkSettings(t Target, s *config.Settings) error {
	node := s.Node()
	var errs []error
	if node.IsNull("node.id") {
		errs = append(errs, errors.New("node.id is not set: want the number of this process among those of its service, such as 1"))
	}
	for key, hint := range needed[t] {
		if v, ok := s.Get(key); !ok || strings.TrimSpace(v) == "" {
			errs = append(errs, fmt.Errorf("%s is not set: want %s", key, hint))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if t == All || t == Storaged {
		if err := checkLogDirs(node.List("log.dirs"), s.Where("log.dirs")); err != nil {
			return err
		}
	}
	if t == All || t == Tiering {
		if err := checkStore(s); err != nil {
			return err
		}
	}
	if t == All || t == Controllerd {
		if err := checkDir(node.String("metadata.log.dir")); err != nil {
			return fmt.Errorf("metadata.log.dir (%s): %w; want a folder that this user can write to", s.Where("metadata.log.dir"), err)
		}
	}
	return nil
}

// checkStore says what is wrong with the settings of the object store, and where they stand.
func checkStore(s *config.Settings) error {
	node := s.Node()
	if !node.Bool("remote.log.storage.system.enable") {
		return nil
	}
	prefix := node.String("remote.log.storage.manager.impl.prefix")
	var errs []error
	for _, p := range registry.Problems(s.Map(), node.String(registry.ClassNameConfig), prefix) {
		err := p.Err
		if p.Unknown {
			err = unknownStoreSetting(p, prefix)
		}
		if where := s.Where(p.Key); where != "" {
			err = fmt.Errorf("%s: %w", where, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// unknownStoreSetting says what an unknown setting was most likely meant to be.
func unknownStoreSetting(p registry.Problem, prefix string) error {
	var names []string
	for _, known := range registry.Settings() {
		names = append(names, prefix+known.Name)
	}
	if near := config.Nearest(p.Key, names); near != "" {
		return fmt.Errorf("unknown key %s, did you mean %s?", p.Key, near)
	}
	return p.Err
}

// checkLogDirs wants one log directory that works: a broken one among several only takes its partitions offline.
func checkLogDirs(dirs []string, where string) error {
	var errs []error
	for _, dir := range dirs {
		err := checkDir(dir)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("log.dirs (%s): %w; want a folder that this user can write to", where, errors.Join(errs...))
}

// checkDir makes a folder where there is none, and tries whether it takes files.
func checkDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".writable-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// bootstrapControllers are the addresses of controllers that are known from the start.
func bootstrapControllers(node *configdef.Node) ([]string, error) {
	addresses := node.List("controller.quorum.bootstrap.servers")
	for _, a := range addresses {
		if _, _, err := transport.SplitAddress(a); err != nil {
			return nil, fmt.Errorf("controller.quorum.bootstrap.servers: %w", err)
		}
	}
	return addresses, nil
}

// dialable is the address at which other services reach this process.
func dialable(node *configdef.Node) (string, error) {
	if advertised := node.List("advertised.grpc.listeners"); len(advertised) > 0 {
		if err := checkDialable("advertised.grpc.listeners", advertised[0]); err != nil {
			return "", err
		}
		return advertised[0], nil
	}
	address := node.List("grpc.listeners")[0]
	if err := checkDialable("grpc.listeners", address); err != nil {
		return "", fmt.Errorf("%w, or set advertised.grpc.listeners", err)
	}
	return address, nil
}

// checkDialable refuses addresses that only a listener can use.
func checkDialable(key, address string) error {
	host, port, err := transport.SplitAddress(address)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if strings.HasPrefix(address, "unix:") {
		return nil
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() || port == 0 {
		return fmt.Errorf("%s: others cannot dial %s: name a host and a port", key, address)
	}
	return nil
}
