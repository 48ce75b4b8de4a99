package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"chancery/controllerd/internal/metalog"
	"chancery/controllerd/internal/metalog/metalogtest"
	"chancery/services/kafka/uuid"
	"chancery/services/testkit/ports"
)

const patience = 30 * time.Second

func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func startMember(t *testing.T, c Config) *Member {
	t.Helper()
	c.Logger = testLogger(t)
	c.UnsafeNoFsync = true
	c.WALSegmentBytes = 4 << 20
	c.Token = "test"
	m, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeMember(t, m) })
	return m
}

func closeMember(t *testing.T, m *Member) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if err := m.Close(ctx); err != nil {
		t.Error(err)
	}
}

// awaitLeader waits until a member leads or does not.
func awaitLeader(t *testing.T, m *Member, want bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case leads := <-m.Leadership():
			if leads == want {
				return
			}
		case <-deadline:
			t.Fatalf("leadership did not become %t", want)
		}
	}
}

// viewOf is another controller's view through the same member.
type viewOf struct {
	*Member
	other store
}

func (v viewOf) Claim(ctx context.Context, address string) (metalog.Term, error) {
	return v.other.Claim(ctx, address)
}

func TestConformance(t *testing.T) {
	metalogtest.Run(t, func(t *testing.T) (one, two metalog.Log) {
		m := startMember(t, Config{ID: 1, Dir: filepath.Join(t.TempDir(), "quorum")})
		awaitLeader(t, m, true)
		other := m.store
		other.id = 2
		return m, viewOf{m, other}
	})
}

func TestRestartKeepsEverything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "quorum")
	m := startMember(t, Config{ID: 1, Dir: dir})
	awaitLeader(t, m, true)
	term, err := m.Claim(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := term.Append(t.Context(), metalogtest.Batch(term, 0, 5)); err != nil {
		t.Fatal(err)
	}
	closeMember(t, m)
	begin := time.Now()
	m = startMember(t, Config{ID: 1, Dir: dir})
	awaitLeader(t, m, true)
	term, err = m.Claim(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("restarted and claimed in %s", time.Since(begin))
	if term.Epoch() != 2 || term.EndOffset() != 5 {
		t.Fatalf("epoch %d, end %d", term.Epoch(), term.EndOffset())
	}
}

// freeAddresses finds ports that nobody uses.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	addresses, err := ports.FreeAddresses(n)
	if err != nil {
		t.Fatal(err)
	}
	return addresses
}

func startThree(t *testing.T) ([]*Member, []Config) {
	t.Helper()
	var voters []Voter
	for i, a := range freeAddresses(t, 3) {
		voters = append(voters, Voter{ID: int32(i + 1), Address: a})
	}
	configs := make([]Config, 3)
	members := make([]*Member, 3)
	done := make(chan int)
	for i := range members {
		configs[i] = Config{ID: int32(i + 1), Dir: filepath.Join(t.TempDir(), "quorum"), Voters: voters,
			Address: fmt.Sprintf("127.0.0.1:%d", 10001+i), Election: 200 * time.Millisecond}
		go func() {
			members[i] = startMember(t, configs[i])
			done <- i
		}()
	}
	for range members {
		<-done
	}
	return members, configs
}

// TestAddressOfAVoterChanges begins with a voter that nobody can reach, gives it an address, and another one.
func TestAddressOfAVoterChanges(t *testing.T) {
	config := Config{ID: 1, Dir: filepath.Join(t.TempDir(), "quorum"), DirectoryID: uuid.UUID{1}, Election: 100 * time.Millisecond}
	m := startMember(t, config)
	awaitLeader(t, m, true)
	closeMember(t, m)
	for _, address := range freeAddresses(t, 2) {
		config.Voters = []Voter{{ID: 1, Address: address}}
		m := startMember(t, config)
		awaitLeader(t, m, true)
		deadline := time.After(patience)
		for {
			members, err := m.Members(t.Context(), 1, uuid.UUID{1})
			if err == nil && len(members) == 1 && members[0].Address == address {
				break
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-deadline:
				t.Fatalf("members %v, %v, want the address %s", members, err, address)
			}
		}
		closeMember(t, m)
	}
}

// leaderOf waits until one of the members leads.
func leaderOf(t *testing.T, members []*Member) int {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		for i, m := range members {
			if m != nil && m.etcd.Server.Leader() == m.etcd.Server.MemberID() {
				return i
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("no leader")
		}
	}
}

// appendAsLeader has the member that leads claim the log and append n records; what was confirmed must be there. As controllers do, it
// claims again when nobody knows the outcome, which an election leaves on a busy machine.
func appendAsLeader(t *testing.T, members []*Member, confirmed int64, n int) (leader int, term metalog.Term, end int64) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		leader = leaderOf(t, members)
		term, err := members[leader].Claim(t.Context(), "a:1")
		if err == nil {
			if term.EndOffset() < confirmed {
				t.Fatalf("end %d of epoch %d, want %d", term.EndOffset(), term.Epoch(), confirmed)
			}
			b := metalogtest.Batch(term, term.EndOffset(), n)
			if err = term.Append(t.Context(), b); err == nil {
				return leader, term, b.EndOffset()
			}
		}
		if !errors.Is(err, metalog.ErrUnknown) && !errors.Is(err, metalog.ErrFenced) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestFailoverOfThree(t *testing.T) {
	members, configs := startThree(t)
	first, term, end := appendAsLeader(t, members, 0, 3)
	for range 9 {
		first, term, end = appendAsLeader(t, members, end, 3)
	}
	// The end of a process without farewell.
	members[first].etcd.Server.HardStop()
	begin := time.Now()
	rest := slices.Clone(members)
	rest[first] = nil
	second, next, _ := appendAsLeader(t, rest, end, 1)
	if next.Epoch() <= term.Epoch() {
		t.Fatalf("epoch %d after %d", next.Epoch(), term.Epoch())
	}
	t.Logf("another member appended after %s", time.Since(begin))
	if voters, err := members[second].Voters(t.Context()); err != nil || len(voters) != 3 {
		t.Fatalf("voters %v, %v", voters, err)
	}

	// The member comes back with its disk, and would be refused without it.
	closeMember(t, members[first])
	if err := os.RemoveAll(configs[first].Dir); err != nil {
		t.Fatal(err)
	}
	wiped := configs[first]
	wiped.Logger, wiped.UnsafeNoFsync, wiped.Token = testLogger(t), true, "test"
	if m, err := Start(wiped); err == nil {
		closeMember(t, m)
		t.Fatal("a voter that lost its disk came back under its old name")
	}
}

func TestUnknownOutcomeEndsTerm(t *testing.T) {
	m := startMember(t, Config{ID: 1, Dir: filepath.Join(t.TempDir(), "quorum")})
	awaitLeader(t, m, true)
	term, err := m.Claim(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := term.Append(ctx, metalogtest.Batch(term, 0, 1)); !errors.Is(err, metalog.ErrUnknown) {
		t.Fatalf("got %v, want unknown", err)
	}
	if err := term.Append(t.Context(), metalogtest.Batch(term, 0, 1)); !errors.Is(err, metalog.ErrFenced) {
		t.Fatalf("got %v, want fenced", err)
	}
	again, err := m.Claim(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Append(t.Context(), metalogtest.Batch(again, again.EndOffset(), 1)); err != nil {
		t.Fatal(err)
	}
}

func TestFullStoreIsCured(t *testing.T) {
	m := startMember(t, Config{ID: 1, Dir: filepath.Join(t.TempDir(), "quorum"), QuotaBytes: 32 << 20})
	awaitLeader(t, m, true)
	term, err := m.Claim(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	var end int64
	fill := make([]byte, 512<<10)
	for i := range 1000 {
		b := metalog.Batch{BaseOffset: end, Epoch: term.Epoch(), Records: [][]byte{fill}}
		if err = term.Append(t.Context(), b); err != nil {
			break
		}
		end = b.EndOffset()
		// The store's size is only known once a change is committed; what a fast machine fits in before that may not leave
		// room after the snapshot's part is dropped.
		m.etcd.Server.Backend().ForceCommit()
		if i == 30 {
			info := metalog.SnapshotInfo{EndOffset: end, Epoch: term.Epoch()}
			if err := term.PutSnapshot(t.Context(), info, slices.Values([][]byte{{1}})); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !errors.Is(err, metalog.ErrNoSpace) {
		t.Fatalf("got %v, want no space", err)
	}
	awaitAlarm(t, m)
	// A member's own alarm can land after it was taken back.
	reclaim, reclaims := m.reclaim, 0
	m.reclaim = func(ctx context.Context) error {
		reclaims++
		err := reclaim(ctx)
		if reclaims == 1 {
			_, late := m.etcd.Server.Alarm(ctx, &etcdserverpb.AlarmRequest{
				MemberID: uint64(m.etcd.Server.MemberID()), Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE})
			err = errors.Join(err, late)
		}
		return err
	}
	term, err = m.Claim(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	if term.EndOffset() != end || reclaims != 2 {
		t.Fatalf("end %d, want %d; room was made %d times, want 2", term.EndOffset(), end, reclaims)
	}
	if err := term.Append(t.Context(), metalogtest.Batch(term, end, 1)); err != nil {
		t.Fatal(err)
	}
}

// awaitAlarm waits for the alarm that a full member raises beside its answer.
func awaitAlarm(t *testing.T, m *Member) {
	t.Helper()
	for {
		alarms, err := m.client.AlarmList(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(alarms.Alarms) > 0 {
			return
		}
	}
}

func TestBrokenFilesAreReported(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "quorum")
	m := startMember(t, Config{ID: 1, Dir: dir})
	awaitLeader(t, m, true)
	term, err := m.Claim(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(20) {
		if err := term.Append(t.Context(), metalogtest.Batch(term, i, 1)); err != nil {
			t.Fatal(err)
		}
	}
	closeMember(t, m)
	files, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(data, 'r')
	for i := range data[:len(data)-10] {
		if string(data[i:i+8]) == "record 5" {
			at = i
			break
		}
	}
	data[at] ^= 0xff
	if err := os.WriteFile(files[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := Config{ID: 1, Dir: dir, Logger: testLogger(t), UnsafeNoFsync: true, Token: "test"}
	done := make(chan error, 1)
	go func() {
		m, err := Start(broken)
		if err == nil {
			_ = m.Close(context.WithoutCancel(t.Context()))
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Fatal("a flipped byte in the log went unnoticed")
		}
		t.Log(err)
	case <-time.After(patience):
		t.Fatal("the start hangs")
	}
}
