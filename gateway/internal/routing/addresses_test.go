package routing_test

import (
	"fmt"
	"testing"

	"chancery/gateway/internal/fake"
	"chancery/gateway/internal/routing"
	"chancery/services/kafka/metarecord"
)

func endpoint(host string, port uint16) metarecord.Endpoint {
	return metarecord.Endpoint{Name: "PLAINTEXT", Host: host, Port: port}
}

func addresses() *routing.Addresses {
	return routing.NewAddresses(map[string]routing.Address{"PLAINTEXT": {Host: "own", Port: 1}})
}

func hosts(nodes []routing.Node) map[string]int {
	out := map[string]int{}
	for _, n := range nodes {
		out[fmt.Sprintf("%s:%d", n.Host, n.Port)]++
	}
	return out
}

func TestDifferentNodesGetDifferentGateways(t *testing.T) {
	c := fake.NewCluster(1, 2, 3)
	a := addresses()
	client := routing.Client{ID: "x", Host: "/10.0.0.1"}
	if got := hosts(a.Nodes(c.Image(), "PLAINTEXT", client, false)); got["own:1"] != 3 {
		t.Errorf("no gateway is registered: %v", got)
	}
	for id := int32(1); id <= 5; id++ {
		c.AddGateway(id, "", endpoint(fmt.Sprintf("gw%d", id), 9092))
		want := min(int(id), 3)
		got := hosts(a.Nodes(c.Image(), "PLAINTEXT", client, false))
		if len(got) != want {
			t.Errorf("%d gateways: %v", id, got)
		}
		for _, n := range a.Nodes(c.Image(), "PLAINTEXT", client, false) {
			if one, ok := a.Node(c.Image(), "PLAINTEXT", client, n.ID); !ok || one != n {
				t.Errorf("node %d alone has another address: %+v, %+v", n.ID, one, n)
			}
		}
	}
	if _, ok := a.Node(c.Image(), "PLAINTEXT", client, 9); ok {
		t.Error("an unknown node has an address")
	}
}

func TestClientsAreSpread(t *testing.T) {
	c := fake.NewCluster(1)
	for id := int32(1); id <= 4; id++ {
		c.AddGateway(id, "", endpoint(fmt.Sprintf("gw%d", id), 9092))
	}
	count := map[string]int{}
	for i := range 4000 {
		for host, n := range hosts(addresses().Nodes(c.Image(), "PLAINTEXT", routing.Client{ID: fmt.Sprint(i)}, false)) {
			count[host] += n
		}
	}
	for host, n := range count {
		if n < 800 || n > 1200 {
			t.Errorf("%s has %d of 4000 clients", host, n)
		}
	}
}

func TestGatewaysOfTheRackComeFirst(t *testing.T) {
	c := fake.NewCluster()
	for id, rack := range map[int32]string{1: "a", 2: "a", 3: "b", 4: "c"} {
		c.Apply(&metarecord.RegisterBrokerRecord{BrokerID: id, BrokerEpoch: 1, Rack: &rack})
	}
	c.AddGateway(1, "a", endpoint("in-a", 1))
	c.AddGateway(2, "b", endpoint("in-b", 1))
	for _, n := range addresses().Nodes(c.Image(), "PLAINTEXT", routing.Client{}, false) {
		if want := map[int32]string{1: "in-a", 2: "in-a", 3: "in-b", 4: "in-b"}[n.ID]; n.Host != want {
			t.Errorf("node %d is at %s, want %s", n.ID, n.Host, want)
		}
	}
}

func TestFencedMembersAreLeftOut(t *testing.T) {
	c := fake.NewCluster(1, 2)
	c.AddGateway(1, "", endpoint("one", 1))
	c.Apply(&metarecord.RegisterServiceRecord{Kind: 1, ID: 2, Epoch: 1, Fenced: true, EndPoints: []metarecord.Endpoint{endpoint("fenced", 1)}})
	c.AddGateway(3, "", metarecord.Endpoint{Name: "OTHER", Host: "other-listener", Port: 1})
	c.Apply(&metarecord.FenceBrokerRecord{ID: 2, Epoch: 2})
	nodes := addresses().Nodes(c.Image(), "PLAINTEXT", routing.Client{}, false)
	if len(nodes) != 1 || nodes[0].ID != 1 || nodes[0].Host != "one" {
		t.Errorf("%+v", nodes)
	}
	nodes = addresses().Nodes(c.Image(), "PLAINTEXT", routing.Client{}, true)
	if len(nodes) != 2 || !nodes[1].Fenced {
		t.Errorf("%+v", nodes)
	}
}

func TestNodePorts(t *testing.T) {
	c := fake.NewCluster(1, 2)
	c.AddGateway(1, "", endpoint("gw", 9092), metarecord.Endpoint{Name: routing.NodeEndpoint("PLAINTEXT", 2), Host: "gw", Port: 9192})
	got := hosts(addresses().Nodes(c.Image(), "PLAINTEXT", routing.Client{}, false))
	if got["gw:9092"] != 1 || got["gw:9192"] != 1 {
		t.Errorf("%v", got)
	}
}
