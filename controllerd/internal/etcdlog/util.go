package etcdlog

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"chancery/controllerd/internal/metalog"
)

func serializable() []clientv3.OpOption {
	return []clientv3.OpOption{clientv3.WithSerializable()}
}

// noAlarm stands for all alarms.
func noAlarm() *clientv3.AlarmMember { return &clientv3.AlarmMember{} }

// listenURL is what a member listens on for an address that others dial: the address itself when it is a number, else the
// port on all interfaces, since etcd does not listen on names.
func listenURL(address string) (url.URL, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return url.URL{}, fmt.Errorf("address of a voter: %w", err)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
		host = "0.0.0.0"
	}
	return url.URL{Scheme: "http", Host: net.JoinHostPort(host, port)}, nil
}

func sortVoters(voters []metalog.Voter) []metalog.Voter {
	slices.SortFunc(voters, func(a, b metalog.Voter) int { return int(a.ID) - int(b.ID) })
	return voters
}
