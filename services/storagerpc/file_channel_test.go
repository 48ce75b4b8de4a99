package storagerpc

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"chancery/services/storage"
)

// serveFiles is serve on TCP with a channel for files.
func serveFiles(t *testing.T, node storage.Node) *fixture {
	t.Helper()
	f := serveTCP(t, node)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	if err := f.rpcServer.files.listenFiles(ctx, f.address); err != nil {
		t.Skip("this system passes no files between processes:", err)
	}
	return f
}

// Records of a node on the same machine come as files where that pays, and everything else over the stream.
func TestRecordsComeAsFiles(t *testing.T) {
	const size = 3 << 20
	file := segment(t, size)
	content, err := io.ReadAll(io.NewSectionReader(file, 0, size))
	if err != nil {
		t.Fatal(err)
	}
	var released atomic.Int32
	region := func(offset, length int) storage.FileRegion {
		return storage.FileRegion{File: file, Offset: int64(offset), Length: length, Done: func() { released.Add(1) }}
	}
	node := &fakeNode{onFetch: func(context.Context, *storage.FetchRequest) (*storage.FetchResult, error) {
		return &storage.FetchResult{Partitions: []storage.FetchPartitionResult{
			{Partition: 0, HighWatermark: 7, Records: storage.Records{Files: []storage.FileRegion{region(0, 1<<20), region(2<<20, 1<<20)}}},
			{Partition: 1, Records: storage.Records{Files: []storage.FileRegion{region(5, 100)}}},
			{Partition: 2},
			{Partition: 3, Records: storage.Records{Files: []storage.FileRegion{region(9, minPassedBytes)}}},
			{Partition: 4, Records: storage.Records{Buffers: mem.BufferSlice{mem.SliceBuffer(content[:1000])}}},
		}}, nil
	}}
	f := serveFiles(t, node)
	want := [][]byte{append(bytes.Clone(content[:1<<20]), content[2<<20:]...), content[5:105], nil, content[9 : 9+minPassedBytes], content[:1000]}
	// The server learns of the channel beside the stream: until then records come over the stream.
	asked := int32(3 + 1)
	for there := false; !there; asked++ {
		res, err := f.client.Fetch(t.Context(), fetchOf(5, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		there = len(res.Partitions[0].Records.Files) > 0
		res.Release()
	}
	for round := range 3 {
		res, err := f.client.Fetch(t.Context(), fetchOf(5, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		for i, asFile := range []bool{true, false, false, true, false} {
			p := &res.Partitions[i]
			if (len(p.Records.Files) > 0) != asFile || p.Partition != int32(i) {
				t.Errorf("round %d, partition %d has %d regions", round, i, len(p.Records.Files))
			}
			if got, err := p.Records.ReadAll(); err != nil || !bytes.Equal(got, want[i]) {
				t.Errorf("round %d, partition %d: %d bytes, want %d, %v", round, i, len(got), len(want[i]), err)
			}
		}
		if n := f.client.files.Load().open.Load(); n != 3 {
			t.Errorf("%d files are open", n)
		}
		res.Release()
		res.Release()
		if n := f.client.files.Load().open.Load(); n != 0 {
			t.Errorf("%d files are open after the release", n)
		}
	}
	// Without the channel the same records come over the stream.
	f.client.files.Swap(nil).close()
	res, err := f.client.Fetch(t.Context(), fetchOf(5, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Release()
	for i := range want {
		if got, err := res.Partitions[i].Records.ReadAll(); err != nil || !bytes.Equal(got, want[i]) || len(res.Partitions[i].Records.Files) > 0 {
			t.Errorf("partition %d without the channel: %d bytes, %v", i, len(got), err)
		}
	}
	f.stopServer()
	if n := released.Load(); n != 4*asked {
		t.Errorf("the node got %d of %d regions back", n, 4*asked)
	}
}

// pipePass is a passConn whose files come from a channel.
type pipePass struct {
	in  chan []passedFile
	ids chan uint64
}

func (p pipePass) send(uint64, []passedFile) error { return nil }

func (p pipePass) receive() (uint64, []passedFile, error) {
	files, ok := <-p.in
	if !ok {
		return 0, nil, io.EOF
	}
	return <-p.ids, files, nil
}

func (p pipePass) Close() error { return nil }

// Files that nobody claims are closed: of fetches that were given up, that were never made, and that came twice.
func TestUnclaimedFilesAreClosed(t *testing.T) {
	p := pipePass{in: make(chan []passedFile), ids: make(chan uint64, 1)}
	c := newFileChannel([channelTokenBytes]byte{}, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.receive()
	}()
	var all []*os.File
	come := func(id uint64) {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
		p.in <- []passedFile{f}
		p.ids <- id
	}
	first, second, third := c.expect(), c.expect(), c.expect()
	come(first)
	come(first)
	come(99)
	c.forget(second)
	come(second)
	files, err := c.claim(t.Context(), first)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	c.drop(files)
	come(third)
	close(p.in)
	<-done
	if n := c.open.Load(); n != 0 {
		t.Errorf("%d files are open", n)
	}
	for i, f := range all {
		if _, err := f.Stat(); err == nil {
			t.Errorf("file %d is open", i)
		}
	}
	if c.expect() != 0 || c.alive() {
		t.Error("a channel that has ended is still used")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.claim(ctx, 7); err == nil {
		t.Error("files of nowhere")
	}
}

// A node that announces files it has not passed, or places outside of them, is not believed.
func TestBadRegionsAreRefused(t *testing.T) {
	for name, region := range map[string]passedRegion{
		"no such file":    {file: 1, length: 10},
		"a negative file": {file: -1, length: 10},
		"negative offset": {offset: -1, length: 10},
		"no length":       {},
	} {
		p := pipePass{in: make(chan []passedFile), ids: make(chan uint64, 1)}
		c := newFileChannel([channelTokenBytes]byte{}, p)
		go c.receive()
		id := c.expect()
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		p.in <- []passedFile{f}
		p.ids <- id
		res := &storage.FetchResult{Partitions: make([]storage.FetchPartitionResult, 1)}
		if err := c.attach(t.Context(), id, res, map[int][]passedRegion{0: {region}}); err == nil {
			t.Errorf("%s: accepted", name)
		}
		res.Release()
		if n := c.open.Load(); n != 0 {
			t.Errorf("%s: %d files are open", name, n)
		}
		close(p.in)
	}
}
