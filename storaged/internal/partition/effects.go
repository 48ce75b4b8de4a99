package partition

import "chancery/services/kafka/errcode"

// Effects is what an event asks the caller to do, in the order of the fields. The zero value asks for nothing.
type Effects struct {
	// AssignEpoch is to be written to the log's leader epochs before anything else.
	AssignEpoch *EpochStart
	// StopFetching ends copying from the leader; Fetch starts it anew, from the log's end.
	StopFetching bool
	Fetch        *FetchFrom
	// HighWatermarkMoved says that readers may see more, and that appends with acks=all that end at or below the high
	// watermark are to be answered.
	HighWatermarkMoved bool
	// FailAcks, when not None, is the answer to every append that still waits; whether it survives is unknown.
	FailAcks errcode.Code
	// AlterPartition is to be sent to the controller, and its outcome reported with AlterPartitionDone or
	// AlterPartitionFailed.
	AlterPartition *AlterPartition
	// ISRGrowth is by how many replicas the ISR of a partition that was led before has grown, or shrunk when it is negative.
	ISRGrowth int
	// LowWatermarkMoved says that waiting deletions may be done.
	LowWatermarkMoved bool
	// LookAgain says that the leader, its epoch or the log itself is another one: waiting readers must look again.
	LookAgain bool
}

// EpochStart is a leader epoch and the offset of its first record.
type EpochStart struct {
	Epoch  int32
	Offset int64
}

// FetchFrom says whom to copy from.
type FetchFrom struct {
	Leader      int32
	LeaderEpoch int32
}

// AlterPartition is a change of the ISR that the controller is asked for. It is immutable.
type AlterPartition struct {
	LeaderEpoch    int32
	PartitionEpoch int32
	// ISR is the wanted one, with the broker epochs that make sure that each member is the incarnation that caught up.
	ISR []Member
	// Added is the replica that joins; -1 when replicas leave.
	Added int32
}

// Member is a replica in a wanted ISR.
type Member struct {
	ID int32
	// BrokerEpoch is -1 where it is not known, which the controller takes for the present one.
	BrokerEpoch int64
}
