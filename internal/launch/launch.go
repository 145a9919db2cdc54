// Package launch starts the processes of a job on this machine as torchrun does, for tests.
package launch

import (
	"net"
	"os"
	"strconv"
)

// Port returns a port that is free, for the job's store.
func Port() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "", err
	}
	return port, l.Close()
}

// Environ returns the environment of a rank whose job meets at the port, with one thread for its operators.
func Environ(rank, size int, port string) []string {
	return append(os.Environ(), "RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(size), "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port,
		"OMP_NUM_THREADS=1")
}
