package storageclient

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/storage"
)

// fakeImage has storage nodes only.
type fakeImage struct {
	metadata.Reader
	offset  int64
	brokers map[int32]*metadata.Broker
}

func (i *fakeImage) Offset() int64                    { return i.offset }
func (i *fakeImage) Broker(id int32) *metadata.Broker { return i.brokers[id] }

func broker(epoch int64, port uint16) *metadata.Broker {
	return &metadata.Broker{Epoch: epoch, Endpoints: []metadata.Endpoint{{Name: metadata.GRPCEndpoint, Host: "h", Port: port}}}
}

// fakeRemote notes that it was closed.
type fakeRemote struct {
	storage.Node
	address string
	closed  int
}

func (r *fakeRemote) Close() error {
	r.closed++
	return nil
}

type fixture struct {
	pool    *Pool
	image   *fakeImage
	remotes []*fakeRemote
}

func newFixture(image *fakeImage) *fixture {
	f := &fixture{image: image}
	f.pool = New(Config{
		Image: func() metadata.Reader { return f.image },
		Connect: func(address string) (RemoteNode, error) {
			if address == "h:13" {
				return nil, errors.New("no such address")
			}
			f.remotes = append(f.remotes, &fakeRemote{address: address})
			return f.remotes[len(f.remotes)-1], nil
		},
	})
	return f
}

func (f *fixture) node(t *testing.T, id int32) storage.Node {
	t.Helper()
	n, err := f.pool.Node(id)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNodesAreReplacedWithTheirIncarnations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(&fakeImage{offset: 10, brokers: map[int32]*metadata.Broker{1: broker(5, 9), 2: broker(6, 8)}})
		first := f.node(t, 1)
		if f.node(t, 1) != first || f.node(t, 2) == first || f.remotes[0].address != "h:9" {
			t.Error("not one client for each node")
		}
		// Another incarnation at the same address, then another address of the same incarnation.
		f.image = &fakeImage{offset: 20, brokers: map[int32]*metadata.Broker{1: broker(15, 9)}}
		second := f.node(t, 1)
		f.image = &fakeImage{offset: 21, brokers: map[int32]*metadata.Broker{1: broker(15, 7)}}
		third := f.node(t, 1)
		if second == first || third == second {
			t.Error("a node that came back was not connected to again")
		}
		synctest.Wait()
		for i, want := range []int{1, 0, 1, 0} {
			if f.remotes[i].closed != want {
				t.Errorf("client %d (%s) was closed %d times", i, f.remotes[i].address, f.remotes[i].closed)
			}
		}
		// An image from before the last registration takes nothing away; later ones do.
		f.pool.Update(&fakeImage{offset: 12, brokers: map[int32]*metadata.Broker{2: broker(6, 8)}})
		if f.node(t, 1) != third {
			t.Error("an old image closed a new client")
		}
		f.pool.Update(f.image)
		synctest.Wait()
		if f.remotes[1].closed != 1 || f.node(t, 1) != third {
			t.Error("the client of the node that is gone stays, or that of the live one went")
		}
		if err := f.pool.Close(); err != nil || f.remotes[3].closed != 1 {
			t.Error(err)
		}
		f.image = &fakeImage{offset: 30, brokers: map[int32]*metadata.Broker{1: broker(25, 7)}}
		if _, err := f.pool.Node(1); errcode.Of(err) != errcode.BrokerNotAvailable {
			t.Errorf("after the close: %v", err)
		}
	})
}

// TestFencedNodesAreGivenUp: what waits for a node that does not answer ends when the controller has fenced it.
func TestFencedNodesAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := func(offset int64, fenced bool) *fakeImage {
			b := broker(5, 9)
			b.Fenced = fenced
			return &fakeImage{offset: offset, brokers: map[int32]*metadata.Broker{1: b}}
		}
		f := newFixture(state(10, true))
		next := func(offset int64, fenced bool) {
			f.image = state(offset, fenced)
			f.pool.Update(f.image)
			synctest.Wait()
		}
		first := f.node(t, 1) // It has registered and is about to be unfenced.
		next(11, true)
		next(12, false)
		if f.node(t, 1) != first || f.remotes[0].closed != 0 {
			t.Fatal("a node that starts is given up")
		}
		next(13, true)
		if f.remotes[0].closed != 1 {
			t.Fatal("a node that was fenced is waited for")
		}
		second := f.node(t, 1)
		next(14, true)
		next(15, false)
		if f.node(t, 1) != second || f.remotes[1].closed != 0 {
			t.Fatal("a fenced node is given up again and again")
		}
		next(16, true)
		if f.remotes[1].closed != 1 {
			t.Fatal("a node is not given up when it is fenced for the second time")
		}
	})
}

func TestLocalNodesAreGivenThemselves(t *testing.T) {
	f := newFixture(&fakeImage{brokers: map[int32]*metadata.Broker{1: broker(5, 9)}})
	here := &fakeRemote{}
	f.pool.AddLocal(1, here)
	if f.node(t, 1) != storage.Node(here) || len(f.remotes) != 0 {
		t.Error("a node of the same process is reached over the network")
	}
}

func TestNodesThatCannotBeReached(t *testing.T) {
	f := newFixture(&fakeImage{brokers: map[int32]*metadata.Broker{2: {Epoch: 1}, 3: broker(1, 13)}})
	for id, want := range map[int32]errcode.Code{1: errcode.BrokerNotAvailable, 2: errcode.BrokerNotAvailable, 3: errcode.UnknownServerError} {
		t.Run(fmt.Sprint(id), func(t *testing.T) {
			if _, err := f.pool.Node(id); errcode.Of(err) != want {
				t.Errorf("got %v", err)
			}
		})
	}
}
