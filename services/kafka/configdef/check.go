package configdef

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"chancery/services/kafka/errcode"
)

// CheckTopic says what is wrong with the configs of a topic on this node. Existing are those that it had before, nil for
// a new one.
func (n *Node) CheckTopic(configs, existing map[string]string) error {
	if err := checkNames(TopicResource, configs, "Unknown topic config name: "); err != nil {
		return err
	}
	if err := firstBad(TopicResource, configs); err != nil {
		return err
	}
	t, _ := n.Topic(configs)
	if t.MinCompactionLagMs > t.MaxCompactionLagMs {
		return errcode.InvalidConfig.Errorf("conflict topic config setting min.compaction.lag.ms (%d) > max.compaction.lag.ms (%d)",
			t.MinCompactionLagMs, t.MaxCompactionLagMs)
	}
	if !t.RemoteStorageEnable {
		if strings.EqualFold(existing["remote.storage.enable"], "true") && !t.RemoteLogDeleteOnDisable {
			return errcode.InvalidConfig.Errorf("It is invalid to disable remote storage without deleting remote data. " +
				"If you want to keep the remote data and turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. " +
				"If you want to disable remote storage and delete all remote data, please set `remote.storage.enable=false,remote.log.delete.on.disable=true`.")
		}
		return nil
	}
	if !n.Bool("remote.log.storage.system.enable") {
		return errcode.InvalidConfig.Errorf("Tiered Storage functionality is disabled in the broker. " +
			"Topic cannot be configured with remote log storage.")
	}
	return t.checkRemote()
}

// checkNames refuses names that the resource does not have.
func checkNames(r Resource, configs map[string]string, text string) error {
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		if Lookup(r, name) == nil {
			return errcode.InvalidConfig.Errorf("%s%s", text, name)
		}
	}
	return nil
}

// firstBad gives the error of the first config, by name, whose value is refused.
func firstBad(r Resource, configs map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		d := Lookup(r, name)
		if d == nil {
			continue
		}
		if _, err := d.Parse(configs[name]); err != nil {
			return err
		}
	}
	return nil
}

// checkRemote checks a topic with tiered storage.
func (t *Topic) checkRemote() error {
	if t.CleanupCompact {
		return errcode.InvalidConfig.Errorf("Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy " +
			"being an empty list.")
	}
	limits := []remoteLimits{
		{"retention.bytes", "local.retention.bytes", "remote.copy.lag.bytes", t.RetentionBytes, t.LocalRetentionBytes, t.RemoteCopyLagBytes},
		{"retention.ms", "local.retention.ms", "remote.copy.lag.ms", t.RetentionMs, t.LocalRetentionMs, t.RemoteCopyLagMs},
	}
	if err := checkLimits(limits); err != nil {
		return err
	}
	for _, l := range limits {
		if t.RemoteLogCopyDisable && l.local != -2 && l.local != l.whole {
			return errcode.InvalidConfig.Errorf("When `remote.log.copy.disable` is set to true, the `%s` and `%s` must be set to the "+
				"identical value because there will be no more logs copied to the remote storage.", l.localName, l.wholeName)
		}
	}
	return nil
}

// remoteLimits are the limits of a tiered log in one unit, bytes or ms: of all of it, of the local part, and of what may
// wait to be copied.
type remoteLimits struct {
	wholeName, localName, copyWaitName string
	whole, local, copyWait             int64
}

// checkLimits says which limits of tiered logs do not fit together: first those of retention, then those of what waits.
func checkLimits(limits []remoteLimits) error {
	for _, check := range []func(remoteLimits) error{remoteLimits.checkRetention, remoteLimits.checkCopyLag} {
		for _, l := range limits {
			if err := check(l); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l remoteLimits) checkRetention() error {
	switch {
	case l.whole > -1 && l.local == -1:
		return invalid(l.localName, "-1", fmt.Sprintf("Value must not be -1 as %s value is set as %d.", l.wholeName, l.whole))
	case l.whole > -1 && l.local > l.whole:
		return invalid(l.localName, strconv.FormatInt(l.local, 10),
			fmt.Sprintf("Value must not be more than %s property value: %d", l.wholeName, l.whole))
	}
	return nil
}

func (l remoteLimits) checkCopyLag() error {
	local := l.local
	if local == -2 {
		local = l.whole
	}
	if l.copyWait > 0 && local >= 0 && l.copyWait > local {
		return invalid(l.copyWaitName, strconv.FormatInt(l.copyWait, 10),
			fmt.Sprintf("Value must not exceed %s (effective value: %d)", l.localName, local))
	}
	return nil
}

// CheckGroup says what is wrong with the configs of a group on this node.
func (n *Node) CheckGroup(configs map[string]string) error {
	if err := checkNames(GroupResource, configs, "Unknown group config name: "); err != nil {
		return err
	}
	const tags = "streams.rack.aware.assignment.tags"
	if list := SplitList(configs[tags]); len(unique(list)) != len(list) {
		return errcode.InvalidConfig.Errorf("%s must not contain duplicate tag keys.", tags)
	}
	if err := firstBad(GroupResource, configs); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		if err := n.checkGroupConfig(groupTable.get(name), configs[name]); err != nil {
			return err
		}
	}
	for _, kind := range []string{"consumer", "share", "streams"} {
		session, heartbeat := kind+".session.timeout.ms", kind+".heartbeat.interval.ms"
		_, setSession := configs[session]
		_, setHeartbeat := configs[heartbeat]
		l := n.Layers(configs)
		shortest := l.effective(groupTable.get(heartbeat)).Int
		if (setSession || setHeartbeat) && l.effective(groupTable.get(session)).Int <= shortest {
			return errcode.InvalidConfig.Errorf("%s must be greater than %s", session, heartbeat)
		}
	}
	return nil
}

// checkGroupConfig checks one config of a group against what this node allows.
func (n *Node) checkGroupConfig(d *Def, text string) error {
	v, err := d.Parse(text)
	if err != nil {
		return err
	}
	switch {
	case d.LowerBound != "" && d.UpperBound != "":
		if low, high := n.Long(d.LowerBound), n.Long(d.UpperBound); v.Int < low || v.Int > high {
			return errcode.InvalidConfig.Errorf("%s must be in the range %d to %d inclusive.", d.Name, low, high)
		}
	case d.UpperBound != "":
		if high := n.Long(d.UpperBound); v.Int > high {
			return errcode.InvalidConfig.Errorf("%s must be less than or equal to %d", d.Name, high)
		}
	case d.LowerBound != "":
		if low := n.Long(d.LowerBound); v.Int < low {
			return errcode.InvalidConfig.Errorf("%s must be greater than or equal to %d", d.Name, low)
		}
	}
	switch d.Name {
	case "streams.assignor.name":
		if names := n.List("group.streams.assignors"); !slices.Contains(names, v.Text) {
			return errcode.InvalidConfig.Errorf("%s '%s' is not a registered task assignor. Registered assignors are: %s.",
				d.Name, v.Text, bracketed(names))
		}
	case "errors.deadletterqueue.topic.name":
		if strings.HasPrefix(v.Text, "__") {
			return errcode.InvalidConfig.Errorf("%s: DLQ topic name must not start with '__'", d.Name)
		}
	}
	return nil
}

// The bounds of a client metrics subscription's interval.
const (
	minMetricsIntervalMs = 100
	maxMetricsIntervalMs = 3_600_000
)

// matchParameters are what a client metrics subscription may match clients by.
var matchParameters = []string{
	"client_instance_id", "client_id", "client_software_name", "client_software_version", "client_source_address",
	"client_source_port",
}

// CheckClientMetrics says what is wrong with the configs of a client metrics subscription.
func CheckClientMetrics(subscription string, configs map[string]string) error {
	if subscription == "" {
		return errcode.InvalidRequest.Errorf("Subscription name can't be empty")
	}
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		if Lookup(ClientMetricsResource, name) == nil {
			return errcode.InvalidRequest.Errorf("Unknown client metrics configuration: %s", name)
		}
	}
	if err := firstBad(ClientMetricsResource, configs); err != nil {
		return err
	}
	if text, ok := configs["interval.ms"]; ok {
		v, _ := clientMetricsTable.get("interval.ms").Parse(text)
		if v.Int < minMetricsIntervalMs || v.Int > maxMetricsIntervalMs {
			return errcode.InvalidRequest.Errorf("Invalid value %d for interval.ms, interval must be between 100 and 3600000 (1 hour)", v.Int)
		}
	}
	_, err := MatchPatterns(SplitList(configs["match"]))
	return err
}

// MatchPatterns reads the entries of a client metrics subscription's match: what is matched, and by which expression.
func MatchPatterns(entries []string) (map[string]*regexp.Regexp, error) {
	patterns := make(map[string]*regexp.Regexp, len(entries))
	for _, entry := range entries {
		illegal := errcode.InvalidConfig.Errorf("Illegal client matching pattern: %s", entry)
		parameter, expression, ok := strings.Cut(entry, "=")
		parameter = strings.TrimSpace(parameter)
		if !ok || expression == "" || strings.Contains(expression, "=") || !slices.Contains(matchParameters, parameter) {
			return nil, illegal
		}
		re, err := regexp.Compile("^(?:" + strings.TrimSpace(expression) + ")$")
		if err != nil {
			return nil, illegal
		}
		patterns[parameter] = re
	}
	return patterns, nil
}

// listenerOnly are configs that can be altered for one listener only.
var listenerOnly = []string{
	"ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location", "ssl.keystore.password",
	"ssl.keystore.type", "ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type",
}

// clusterLevelListener are configs with a listener's prefix that may be altered for all brokers.
var clusterLevelListener = []string{"max.connections", "max.connection.creation.rate", "num.network.threads"}

// threadPools are configs that may at most double or halve in one step.
var threadPools = []string{
	"background.threads", "num.io.threads", "num.recovery.threads.per.data.dir", "num.replica.fetchers",
	"remote.log.manager.copier.thread.pool.size", "remote.log.manager.expiration.thread.pool.size",
	"remote.log.manager.follower.thread.pool.size", "remote.log.reader.threads",
}

// CheckBroker says what is wrong with dynamic broker configs on this node: all that are set after an alteration, for
// one broker or for all. Kafka accepts unknown names, and so do we.
func (n *Node) CheckBroker(configs map[string]string, perBroker bool) error {
	var fixed, unprefixed, oneBroker []string
	names := slices.Sorted(maps.Keys(configs))
	for _, name := range names {
		d := Lookup(BrokerResource, name)
		if d == nil {
			continue
		}
		prefixed := d.Name != name
		if d.Mode == ReadOnly && !prefixed {
			fixed = append(fixed, name)
		}
		if slices.Contains(listenerOnly, name) {
			unprefixed = append(unprefixed, name)
		}
		if d.Mode == PerBroker && !prefixed || prefixed && !slices.Contains(clusterLevelListener, d.Name) {
			oneBroker = append(oneBroker, name)
		}
	}
	if len(fixed) > 0 {
		return errcode.InvalidRequest.Errorf("Cannot update these configs dynamically: %s", bracketed(fixed))
	}
	if len(unprefixed) > 0 {
		return errcode.InvalidRequest.Errorf("These security configs can be dynamically updated only per-listener using the listener "+
			"prefix: %s", bracketed(unprefixed))
	}
	if err := firstBad(BrokerResource, configs); err != nil {
		return errcode.InvalidRequest.Errorf("%s", errcode.Text(err))
	}
	if !perBroker && len(oneBroker) > 0 {
		return errcode.InvalidRequest.Errorf("Cannot update these configs at default cluster level, broker id must be specified: %s",
			bracketed(oneBroker))
	}
	return n.checkBrokerStep(configs, perBroker)
}

// checkBrokerStep checks what the node would be after the alteration against what it is now.
func (n *Node) checkBrokerStep(configs map[string]string, perBroker bool) error {
	after := n.WithDynamic(n.layers.ClusterDefault, configs)
	if !perBroker {
		after = n.WithDynamic(configs, n.layers.Broker)
	}
	if err := after.CheckTogether(); err != nil {
		return errcode.InvalidRequest.Errorf("%s", errcode.Text(err))
	}
	for _, name := range threadPools {
		was, is := n.Int(name), after.Int(name)
		if is < was/2 {
			return errcode.InvalidRequest.Errorf("Invalid dynamic configuration: %s=%d, value should be at least half the current value %d",
				name, is, was)
		}
		if is > was*2 {
			return errcode.InvalidRequest.Errorf("Invalid dynamic configuration: %s=%d, value should not be greater than double the "+
				"current value %d", name, is, was)
		}
	}
	if err := after.checkRemoteDefaults(n); err != nil {
		return err
	}
	return checkCleanerStep(n.Int("log.cleaner.threads"), after.Int("log.cleaner.threads"))
}

// remoteDefaults are the limits that tiered topics have by default, under their broker configs' names.
func (n *Node) remoteDefaults() []remoteLimits {
	return []remoteLimits{
		{"log.retention.ms", "log.local.retention.ms", "log.remote.copy.lag.ms",
			n.LogRetentionMs(), n.Long("log.local.retention.ms"), n.Long("log.remote.copy.lag.ms")},
		{"log.retention.bytes", "log.local.retention.bytes", "log.remote.copy.lag.bytes",
			n.Long("log.retention.bytes"), n.Long("log.local.retention.bytes"), n.Long("log.remote.copy.lag.bytes")},
	}
}

// checkRemoteDefaults refuses defaults of tiered topics that do not fit together, unless they are what they were before.
func (n *Node) checkRemoteDefaults(before *Node) error {
	limits := n.remoteDefaults()
	if slices.Equal(limits, before.remoteDefaults()) {
		return nil
	}
	if err := checkLimits(limits); err != nil {
		return errcode.InvalidRequest.Errorf("%s", errcode.Text(err))
	}
	return nil
}

// checkCleanerStep says whether the cleaner may go on with another number of threads.
func checkCleanerStep(was, is int) error {
	switch {
	case is == was:
		return nil
	case is < 1:
		return errcode.InvalidRequest.Errorf("Log cleaner threads should be at least 1")
	case is < was/2:
		return errcode.InvalidRequest.Errorf("Log cleaner threads cannot be reduced to less than half the current value %d", was)
	case is > was*2:
		return errcode.InvalidRequest.Errorf("Log cleaner threads cannot be increased to more than double the current value %d", was)
	}
	return nil
}
