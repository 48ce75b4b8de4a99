package node

import (
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/storaged/internal/log"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/mover"
	"chancery/storaged/internal/replica"
)

// AlterReplicaLogDirs (34), versions 1 to 2: replicas of this node move to other log directories of it. The answer comes when
// the move has begun. For a replica that does not exist yet, the directory is remembered.

func newMoves(n *Node) *mover.Set {
	threads := n.o.Static.Int("num.replica.alter.log.dirs.threads")
	if n.o.Static.IsNull("num.replica.alter.log.dirs.threads") {
		threads = len(n.o.Dirs.All())
	}
	return mover.New(mover.Config{
		Open:      n.openMoved,
		Assign:    n.places.assign,
		Quota:     n.quotas.moves,
		Threads:   threads,
		DirFailed: n.LogFailed,
		Moved:     func(_ *replica.Replica, from, to *logdir.Dir) { n.o.Dirs.Moved(from, to) },
		FS:        n.o.FS,
		Logger:    n.o.Logger,
	})
}

// openMoved opens the log of a copy, or of a replica that has just moved.
func (n *Node) openMoved(r *replica.Replica, dir *logdir.Dir, name string, as mover.OpenAs) (*log.Log, error) {
	o := n.logOptions(r.Key(), r.Topic(), dir, (&change{node: n, image: n.newest.Load()}).topicConfig(r.Topic()))
	o.DirName, o.LogStartOffset, o.CleanShutdown = name, as.LogStart, as.Clean
	if as.InService {
		o.Rolled = func() { n.flushes.flush(r) }
	}
	return n.o.OpenLog(o)
}

// resumeMove goes on with a move that a stop has interrupted.
func (n *Node) resumeMove(r *replica.Replica, topicID uuid.UUID) {
	dir, name, ok := n.o.Dirs.Future(logdir.Replica{Topic: r.Topic(), Partition: r.Key().Partition}, topicID)
	if !ok {
		return
	}
	if dir == r.Dir() {
		if err := n.o.FS.RemoveAll(filepath.Join(dir.Path(), name)); err != nil {
			n.LogFailed(dir, err)
		}
		return
	}
	if err := n.moves.Begin(r, dir, name); err != nil {
		n.o.Logger.Error("cannot go on with the move of a replica", "partition", r.String(), "error", err)
	}
}

func (n *Node) alterReplicaLogDirs(req *kmsg.AlterReplicaLogDirsRequest) *kmsg.AlterReplicaLogDirsResponse {
	resp := kmsg.NewPtrAlterReplicaLogDirsResponse()
	at := map[string]int{}
	for _, d := range req.Dirs {
		for _, t := range d.Topics {
			i, ok := at[t.Topic]
			if !ok {
				i = len(resp.Topics)
				at[t.Topic] = i
				out := kmsg.NewAlterReplicaLogDirsResponseTopic()
				out.Topic = t.Topic
				resp.Topics = append(resp.Topics, out)
			}
			for _, p := range t.Partitions {
				out := kmsg.NewAlterReplicaLogDirsResponseTopicPartition()
				out.Partition = p
				if err := n.moveReplica(t.Topic, p, d.Dir); err != nil {
					n.o.Logger.Warn("cannot move a replica", "topic", t.Topic, "partition", p, "to", d.Dir, "error", err)
					out.ErrorCode = int16(errcode.Of(err))
				}
				resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, out)
			}
		}
	}
	return resp
}

// moveReplica begins a replica's move to a directory; to the one that it is in, it ends a move elsewhere.
func (n *Node) moveReplica(topic string, partition int32, path string) error {
	if _, ok := log.FutureDirName(topic, partition); !ok {
		return errcode.InvalidTopicException.Errorf("The topic name is too long.")
	}
	dir, ok := n.o.Dirs.ByPath(path)
	switch {
	case !ok:
		return errcode.LogDirNotFound.Errorf("Log dir %s is not found in the config.", path)
	case dir.Err() != nil:
		return errcode.KafkaStorageError.Errorf("Log directory %s is offline", path)
	case isCordoned(n.cordoned(), dir):
		return errcode.InvalidReplicaAssignment.Errorf("Log directory %s is cordoned", path)
	}
	image := n.applied.load()
	var r *replica.Replica
	known := image.TopicByName(topic)
	if known != nil {
		r = n.lookup(replica.Key{TopicID: known.ID, Partition: partition})
	}
	if r == nil {
		n.o.Dirs.Prefer(logdir.Replica{Topic: topic, Partition: partition}, dir)
		if known == nil || image.Partition(known.ID, partition) == nil {
			return errcode.UnknownTopicOrPartition.Err()
		}
		// Kafka keeps this code for this request, where others would get NotLeaderOrFollower.
		return errcode.ReplicaNotAvailable.Err()
	}
	if r.Log() == nil || r.View().Failed {
		return errcode.KafkaStorageError.Errorf("Partition %s is offline", r)
	}
	if dir == r.Dir() {
		n.moves.Cancel(r.Key())
		return nil
	}
	if len(n.o.Dirs.Online()) < len(n.o.Dirs.All()) {
		// The directory that does not work may hold a copy of the same replica.
		return errcode.KafkaStorageError.Errorf("a log directory is offline: replicas do not move until it is back")
	}
	return n.moves.Begin(r, dir, "")
}
