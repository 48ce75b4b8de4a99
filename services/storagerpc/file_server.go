package storagerpc

import (
	"os"

	"chancery/services/storage"
)

// passedFile is an open file that came from, or goes to, another process.
type passedFile = *os.File

// passConn passes open files between two processes of one machine.
type passConn interface {
	// send passes files under a number. It does not wait for long.
	send(id uint64, files []passedFile) error
	// receive waits for the next files. They belong to the caller.
	receive() (id uint64, files []passedFile, err error)
	Close() error
}

// fileChannels are the node's ends of the channels of its clients.
type fileChannels struct{ channelEnds[passConn] }

// pass passes the files of a result to the client that expects them, and gives for each partition where its records are; nil for those
// whose records go over the stream.
func (c *fileChannels) pass(to fileTarget, partitions []storage.FetchPartitionResult) [][]passedRegion {
	if to.number == 0 {
		return nil
	}
	e := c.get(to.token)
	if e == nil {
		return nil
	}
	var files []passedFile
	regions := make([][]passedRegion, len(partitions))
	for i := range partitions {
		r := &partitions[i].Records
		if len(r.Files) == 0 || r.Len() < minPassedBytes || len(files)+len(r.Files) > maxPassedFiles {
			continue
		}
		for _, f := range r.Files {
			regions[i] = append(regions[i], passedRegion{file: int32(len(files)), offset: f.Offset, length: int64(f.Length)})
			files = append(files, f.File)
		}
	}
	if len(files) == 0 {
		return nil
	}
	e.mu.Lock()
	err := e.conn.send(to.number, files)
	e.mu.Unlock()
	if err != nil {
		c.remove(to.token)
		return nil
	}
	return regions
}

// fileTarget says where a client expects the files of a fetch; number 0 for nowhere.
type fileTarget struct {
	token  [channelTokenBytes]byte
	number uint64
}
