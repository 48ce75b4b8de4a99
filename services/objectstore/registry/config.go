package registry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"chancery/services/objectstore/coldread"
	"chancery/services/objectstore/s3wire"
	"chancery/services/objectstore/segmentobject"
	"chancery/services/objectstore/segmentstore"
)

// Config is the settings of stores and of the cold reader.
type Config struct {
	// Store is how any store is used.
	Store segmentstore.Config
	// DirPath is where the store "dir" keeps its files.
	DirPath string
	// S3 is where the bucket of the stores "s3" and "minio" is.
	S3 s3wire.Settings
	// ColdRead is how segments are read.
	ColdRead coldread.Config
	// settingPrefix is what the settings began with, for messages.
	settingPrefix string
}

// s3Settings are the settings of a bucket, with as many connections as there are requests.
func (c *Config) s3Settings() s3wire.Settings {
	s := c.S3
	s.MaxConnections = c.Store.RequestConcurrency
	return s
}

// setting is one of the settings.
type setting struct {
	name, initial string
	set           func(c *Config, value string) error
	doc           string
}

// Setting describes a setting for people.
type Setting struct {
	Name, Default, Doc string
}

// Settings are all settings, without the prefix.
func Settings() []Setting {
	out := make([]Setting, len(settings))
	for i, s := range settings {
		out[i] = Setting{s.name, s.initial, s.doc}
	}
	return out
}

// Problem is a setting that is wrong.
type Problem struct {
	Key string
	// Unknown says that there is no such setting.
	Unknown bool
	// Err says what is wrong, and names the setting.
	Err error
}

// Parse reads the settings of a process that begin with a prefix, which remote.log.storage.manager.impl.prefix gives. The
// error names every unknown one and every bad value.
func Parse(values map[string]string, prefix, clusterID string) (*Config, error) {
	c, problems := parse(values, prefix, clusterID)
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p.Err
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// Problems are what is wrong with the settings of the store of a name, as far as can be told without the store.
func Problems(values map[string]string, name, prefix string) []Problem {
	c, problems := parse(values, prefix, "")
	if len(problems) > 0 {
		return problems
	}
	var err error
	switch name {
	case "dir":
		err = c.checkDir()
	case "s3":
		err = c.S3.Check()
	case "minio":
		err = errors.Join(c.S3.Check(), c.S3.CheckEndpoint())
	default:
		return []Problem{{Key: ClassNameConfig, Err: unknownStore(name, Stores())}}
	}
	if err != nil {
		return []Problem{{Err: err}}
	}
	return nil
}

// checkDir says what is wrong with the settings of a directory.
func (c *Config) checkDir() error {
	if c.DirPath == "" {
		return fmt.Errorf("%sdir.path is not set: it names the directory of the object store", c.settingPrefix)
	}
	return nil
}

func parse(values map[string]string, prefix, clusterID string) (*Config, []Problem) {
	c := &Config{Store: segmentstore.DefaultConfig(), ColdRead: coldread.DefaultConfig(), settingPrefix: prefix}
	c.Store.ClusterID, c.S3.KeyPrefix = clusterID, prefix
	known := make(map[string]bool, len(settings))
	var problems []Problem
	for _, s := range settings {
		known[s.name] = true
		value, ok := values[prefix+s.name]
		if !ok {
			value = s.initial
		}
		if value == "" && s.initial == "" {
			continue
		}
		if err := s.set(c, strings.TrimSpace(value)); err != nil {
			problems = append(problems, Problem{Key: prefix + s.name, Err: fmt.Errorf("%s%s is %q: %w", prefix, s.name, value, err)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if rest, ok := strings.CutPrefix(name, prefix); ok && !known[rest] {
			problems = append(problems, Problem{Key: name, Unknown: true, Err: fmt.Errorf("%s is not known; there are %s", name, names())})
		}
	}
	if _, ok := values[prefix+"path.style"]; !ok {
		c.S3.PathStyle = c.S3.Endpoint != ""
	}
	return c, problems
}

func names() string {
	all := make([]string, len(settings))
	for i, s := range settings {
		all[i] = s.name
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// settings is the table of all settings.
var settings = []setting{
	{"prefix", "", text(func(c *Config) *string { return &c.Store.Prefix }, segmentobject.CheckPrefix),
		"What the keys of all objects begin with."},
	{"dir.path", "", text(func(c *Config) *string { return &c.DirPath }, nil),
		"Directory of the store \"dir\"."},
	{"bucket", "", text(func(c *Config) *string { return &c.S3.Bucket }, nil),
		"Bucket of the stores \"s3\" and \"minio\"."},
	{"endpoint", "", text(func(c *Config) *string { return &c.S3.Endpoint }, nil),
		"URL of the store, such as https://minio.example.com:9000. Empty for \"s3\": Amazon's of the region."},
	{"region", "", text(func(c *Config) *string { return &c.S3.Region }, nil),
		"Region of the bucket. Empty: AWS_REGION for \"s3\", us-east-1 for \"minio\"."},
	{"path.style", "", pathStyle, "Name the bucket in the path instead of the host name. Empty: true with an endpoint, false without."},
	{"access.key", "", text(func(c *Config) *string { return &c.S3.AccessKey }, nil),
		"Access key. Empty: credentials.file, or the environment, the default files, a web identity token, the machine's role."},
	{"secret.key", "", text(func(c *Config) *string { return &c.S3.SecretKey }, nil),
		"Secret key of the access key."},
	{"session.token", "", text(func(c *Config) *string { return &c.S3.SessionToken }, nil),
		"Session token of temporary keys."},
	{"credentials.file", "", text(func(c *Config) *string { return &c.S3.CredentialsFile }, nil),
		"File with credentials, in Amazon's format; it is read again when it is needed."},
	{"credentials.profile", "", text(func(c *Config) *string { return &c.S3.Profile }, nil),
		"Profile in that file, or in the default ones."},
	{"tls.ca.file", "", text(func(c *Config) *string { return &c.S3.CAFile }, nil),
		"Certificates in PEM that the store's is checked with, instead of the system's."},
	{"checksum", "when_supported", checksum, "when_supported: the store gets CRC-32C with each upload and checks it. when_required: for stores that refuse that."},
	{"storage.class", "", text(func(c *Config) *string { return &c.S3.StorageClass }, nil),
		"Storage class of objects, such as STANDARD_IA. Empty: the bucket's."},
	{"sse", "", oneOf(func(c *Config) *string { return &c.S3.SSE }, "AES256", "aws:kms"),
		"Server-side encryption: AES256 or aws:kms. Empty: the bucket's."},
	{"sse.kms.key.id", "", text(func(c *Config) *string { return &c.S3.SSEKeyID }, nil),
		"Key for sse=aws:kms. Empty: the account's."},
	{"put.max.bytes", "67108864", size(func(c *Config) *int64 { return &c.Store.PutMaxBytes }, 1, 5<<30),
		"Largest segment that is uploaded with one request; larger ones go in parts."},
	{"part.size.bytes", "16777216", wholeMiB(func(c *Config) *int64 { return &c.Store.PartBytes }, 5<<20, 5<<30),
		"Size of the parts of an upload, in whole MiB."},
	{"part.concurrency", "4", number(func(c *Config) *int { return &c.Store.PartConcurrency }, 1, 64),
		"Parts of one object that are uploaded at the same time."},
	{"request.concurrency", "64", number(func(c *Config) *int { return &c.Store.RequestConcurrency }, 2, 4096),
		"Requests to the store at the same time. A store that throttles lowers it for a while."},
	{"request.attempts", "4", number(func(c *Config) *int { return &c.Store.Attempts }, 1, 100),
		"How often a request is made before the job that needs it fails and waits."},
	{"request.timeout.ms", "10000", millis(func(c *Config) *time.Duration { return &c.Store.RequestTimeout }, 100),
		"What a request may take, besides one second for each MiB of its body."},
	{"read.stall.timeout.ms", "5000", millis(func(c *Config) *time.Duration { return &c.Store.StallTimeout }, 100),
		"How long a read may wait for its next byte before the request is made again."},
	{"if.none.match", "true", flag(func(c *Config) *bool { return &c.Store.IfAbsent }),
		"Ask the store to refuse to replace an object. Switch it off for stores that do not know If-None-Match."},
	{"price.put.dollars", "0.000005", price(func(c *Config) *float64 { return &c.Store.PutDollars }),
		"Price of a PUT, for the metric of what topics cost; Amazon's list price by default."},
	{"price.get.dollars", "0.0000004", price(func(c *Config) *float64 { return &c.Store.GetDollars }),
		"The same of a GET. A directory costs nothing."},
	{"cache.memory.bytes", "268435456", size(func(c *Config) *int64 { return &c.ColdRead.MemoryBytes }, 8<<20, 1<<40),
		"Memory for blocks of segments that were read."},
	{"cache.index.bytes", "67108864", size(func(c *Config) *int64 { return &c.ColdRead.IndexBytes }, 1<<20, 1<<40),
		"Memory for the indexes of segments."},
	{"cache.disk.path", "", text(func(c *Config) *string { return &c.ColdRead.DiskPath }, nil),
		"Directory for blocks that leave the memory. Empty: none are kept."},
	{"cache.disk.bytes", "10737418240", size(func(c *Config) *int64 { return &c.ColdRead.DiskBytes }, 64<<20, 1<<50),
		"Disk space for blocks; at 90 % of it the oldest go until 80 %."},
	{"read.ahead.max.bytes", "67108864", size(func(c *Config) *int64 { return &c.ColdRead.ReadAheadMaxBytes }, 0, 1<<30),
		"How far ahead of a sequential reader segments are read."},
	{"read.concurrency", "32", number(func(c *Config) *int { return &c.ColdRead.Concurrency }, 1, 1024),
		"Ranges that are read at the same time."},
	{"read.timeout.ms", "30000", millis(func(c *Config) *time.Duration { return &c.ColdRead.FillTimeout }, 100),
		"How long the read of a range may take, whoever waits for it."},
}

// text is a setting of any text that check, unless it is nil, lets pass.
func text(field func(*Config) *string, check func(string) error) func(*Config, string) error {
	return func(c *Config, value string) error {
		if check != nil {
			if err := check(value); err != nil {
				return err
			}
		}
		*field(c) = value
		return nil
	}
}

// oneOf is a setting of a few values.
func oneOf(field func(*Config) *string, values ...string) func(*Config, string) error {
	return text(field, func(value string) error {
		if !slices.Contains(values, value) {
			return fmt.Errorf("want one of %s", strings.Join(values, ", "))
		}
		return nil
	})
}

func pathStyle(c *Config, value string) error {
	return flag(func(c *Config) *bool { return &c.S3.PathStyle })(c, value)
}

func checksum(c *Config, value string) error {
	switch value {
	case "when_supported", "when_required":
		c.S3.SendChecksums = value == "when_supported"
		return nil
	}
	return errors.New("want when_supported or when_required")
}

// between reads a whole number.
func between(value string, least, most int64) (int64, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("want a whole number from %d to %d", least, most)
	}
	return n, nil
}

func size(field func(*Config) *int64, least, most int64) func(*Config, string) error {
	return func(c *Config, value string) error {
		n, err := between(value, least, most)
		if err == nil {
			*field(c) = n
		}
		return err
	}
}

func price(field func(*Config) *float64) func(*Config, string) error {
	return func(c *Config, value string) error {
		n, err := strconv.ParseFloat(value, 64)
		if err != nil || !(n >= 0 && n <= 1) {
			return errors.New("want a number of dollars from 0 to 1, such as 0.000005")
		}
		*field(c) = n
		return nil
	}
}

func wholeMiB(field func(*Config) *int64, least, most int64) func(*Config, string) error {
	set := size(field, least, most)
	return func(c *Config, value string) error {
		if err := set(c, value); err != nil {
			return err
		}
		if n := *field(c); n%(1<<20) != 0 {
			return fmt.Errorf("want whole MiB, such as %d", (n>>20+1)<<20)
		}
		return nil
	}
}

func number(field func(*Config) *int, least, most int64) func(*Config, string) error {
	return func(c *Config, value string) error {
		n, err := between(value, least, most)
		if err == nil {
			*field(c) = int(n)
		}
		return err
	}
}

func millis(field func(*Config) *time.Duration, least int64) func(*Config, string) error {
	return func(c *Config, value string) error {
		n, err := between(value, least, 24*60*60*1000)
		if err == nil {
			*field(c) = time.Duration(n) * time.Millisecond
		}
		return err
	}
}

func flag(field func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, value string) error {
		switch strings.ToLower(value) {
		case "true":
			*field(c) = true
		case "false":
			*field(c) = false
		default:
			return errors.New("want true or false")
		}
		return nil
	}
}
