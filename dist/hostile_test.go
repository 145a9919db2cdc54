package dist_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// besieged does collectives and makes groups until the store has the key "peace". It sets "begun" when all ranks are connected.
func besieged(g *dist.Group) error {
	s, err := dist.NewTCPStore(ctx, net.JoinHostPort("127.0.0.1", os.Getenv("MASTER_PORT")), false)
	if err != nil {
		return err
	}
	defer s.Close()
	for i := 0; ; i++ {
		x := vector(float32(g.Rank()), float32(i))
		if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
			return err
		}
		n := g.Size()
		if err := want("sum", x, float32(n*(n-1)/2), float32(n*i)); err != nil {
			return err
		}
		peace, err := s.Check("peace")
		if err != nil {
			return err
		}
		if err := s.Set("begun", nil); err != nil {
			return err
		}
		stop, err := dist.AllGatherObject(ctx, g, peace)
		if err != nil {
			return err
		}
		if slices.Contains(stop, true) {
			return nil
		}
		if i%4 == 0 { // which listens on another port while it connects
			sub, err := g.NewGroup(ctx, []int{2, 1, 0})
			if err != nil {
				return err
			}
			if err := errors.Join(sub.Barrier(ctx), sub.Close()); err != nil {
				return err
			}
		}
		tensor.Flush()
	}
}

var listen = regexp.MustCompile(`(?m)^ *\d+: [0-9A-F]+:([0-9A-F]{4}) \S+ 0A (?:\S+ +){5}(\d+)`)

// listening returns the addresses at which a process listens.
func listening(t *testing.T, pid int) (addrs []string) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", pid)
	fds, err := filepath.Glob(proc + "fd/*")
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			own[to] = true
		}
	}
	for _, table := range []string{"net/tcp", "net/tcp6"} {
		text, err := os.ReadFile(proc + table)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the process has ended, as the job tells
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range listen.FindAllSubmatch(text, -1) {
			if own["socket:["+string(m[2])+"]"] {
				port, err := strconv.ParseUint(string(m[1]), 16, 16)
				if err != nil {
					t.Fatal(err)
				}
				addrs = append(addrs, net.JoinHostPort("127.0.0.1", strconv.FormatUint(port, 10)))
			}
		}
	}
	return addrs
}

// validate is the handshake of c10d's TCP store: VALIDATE and its magic number.
var validate = []byte{0, 0xce, 0xf7, 0x85, 0x3c}

// attack does what peers do that do not belong to the job: random bytes, half handshakes, queries that lie about sizes,
// connection numbers that gloo has not given out, and many connections that stay open.
func attack(addr string, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for i := range 100 {
		var data []byte
		switch i % 6 {
		case 0:
			data = noise(random.IntN(4000))
		case 1:
			data = validate[:random.IntN(len(validate))]
		case 2: // a query of any kind with a size of any length
			data = slices.Concat(validate, []byte{byte(random.IntN(24))}, binary.LittleEndian.AppendUint64(nil, random.Uint64()>>random.IntN(64)), noise(100))
		case 3: // ADD to a key, which SET has made no number
			key := slices.Concat(binary.LittleEndian.AppendUint64(nil, 1), []byte("k"))
			data = slices.Concat(validate, []byte{1}, key, key, []byte{4}, key, binary.LittleEndian.AppendUint64(nil, 1))
		case 4: // a number that no pair of gloo has; that of a pair that is connecting would take its place
			data = binary.LittleEndian.AppendUint64(nil, 1000+uint64(random.IntN(1000)))
			data = append(data, noise(random.IntN(200))...)
		case 5: // nothing
		}
		c, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err != nil {
			return // the port of a group that has been closed, or one whose queue is full
		}
		open = append(open, c)
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_, _ = c.Write(data) // which may have been cut off
		if random.IntN(4) == 0 {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	}
}

// TestBesieged tests that a job goes on while strangers connect to all ports of its ranks.
func TestBesieged(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes and takes long; it runs without -short")
	}
	leak.Check(t)
	port := freePort(t)
	j := job{n: 3, role: "besieged", port: port}
	j.during = func(pids []int) {
		limit, end := context.WithTimeout(ctx, time.Minute)
		defer end()
		s, err := dist.NewTCPStore(limit, "127.0.0.1:"+port, false)
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		if err := s.Wait(limit, "begun"); err != nil {
			t.Error(err)
		}
		seen := map[string]bool{}
		for range 10 {
			var all sync.WaitGroup
			for _, pid := range pids {
				for i, addr := range listening(t, pid) {
					seen[addr] = true
					all.Go(func() { attack(addr, uint64(100*pid+i)) })
				}
			}
			all.Wait()
		}
		// The store's, and of each rank gloo's and the one that shows that the process exists.
		if len(seen) < 7 {
			t.Errorf("the ranks listened on %d ports", len(seen))
		}
		if err := s.Set("peace", nil); err != nil {
			t.Error(err)
		}
	}
	j.run(t)
}
