package dist_test

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// launched are the variables of all launchers, which a test must not inherit.
var launched = strings.Fields(`RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GROUP_WORLD_SIZE
	TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_RESTART_COUNT PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
	OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
	SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NTASKS_PER_NODE SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_STEP_NODELIST`)

// TestReadEnvironment tests the variables of each launcher.
func TestReadEnvironment(t *testing.T) {
	leak.Check(t)
	for _, c := range []struct {
		vars string
		want dist.Environment
	}{
		{"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=5 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2 GROUP_WORLD_SIZE=1",
			dist.Environment{Rank: 3, WorldSize: 4, LocalRank: 1, LocalWorldSize: 2, Addr: "a:5", AgentStore: true, Restarts: 2, OneAgent: true}},
		{"RANK=0 WORLD_SIZE=1 MASTER_ADDR=fe80::1 MASTER_PORT=5 SLURM_PROCID=7 SLURM_NTASKS=8", dist.Environment{WorldSize: 1, Addr: "[fe80::1]:5"}},
		{"RANK=0 WORLD_SIZE=1 MASTER_ADDR=[::1] MASTER_PORT=5", dist.Environment{WorldSize: 1, Addr: "[::1]:5"}},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1",
			dist.Environment{Rank: 1, WorldSize: 2, LocalWorldSize: 1}},
		{"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MASTER_ADDR=a MASTER_PORT=5", dist.Environment{Rank: 1, WorldSize: 2, LocalRank: 1, Addr: "a:5"}},
		{"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_JOB_ID=123456 SLURM_JOB_NODELIST=node[07-09,12],gpu3",
			dist.Environment{Rank: 1, WorldSize: 2, LocalRank: 1, Addr: "node07:18456"}},
		{"PMI_RANK=1 PMI_SIZE=2 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_JOB_ID=123456 SLURM_JOB_NODELIST=gpu3",
			dist.Environment{Rank: 1, WorldSize: 2, LocalRank: 1, Addr: "gpu3:18456"}},
		{"PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 SLURM_PROCID=0 SLURM_NTASKS=1", dist.Environment{WorldSize: 2, LocalWorldSize: 2}},
		{"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=x,y SLURM_STEP_NODELIST=gpu3,node[1-2]", dist.Environment{Rank: 1, WorldSize: 2, Addr: "gpu3:15001"}},
		{"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_NODELIST=n[3]-ib,x MASTER_PORT=9", dist.Environment{Rank: 1, WorldSize: 2, Addr: "n3-ib:9"}},
	} {
		setenv(t, c.vars)
		if got, err := dist.ReadEnvironment(); err != nil || *got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", c.vars, got, err, c.want)
		}
	}
	for _, vars := range []string{"", "RANK=1", "RANK=x WORLD_SIZE=2", "RANK=2 WORLD_SIZE=2", "RANK=-1 WORLD_SIZE=2"} {
		setenv(t, vars)
		if _, err := dist.ReadEnvironment(); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("%q: %v", vars, err)
		}
	}
}

func setenv(t *testing.T, vars string) {
	t.Helper()
	for _, name := range launched {
		t.Setenv(name, "")
	}
	for _, v := range strings.Fields(vars) {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
}

// TestInitErrors tests settings with which there can be no group.
func TestInitErrors(t *testing.T) {
	leak.Check(t)
	setenv(t, "RANK=0 WORLD_SIZE=2")
	store, err := dist.NewHashStore()
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for name, opts := range map[string][]dist.Option{
		"no address":     nil,
		"no world size":  {dist.InitMethod("tcp://127.0.0.1:1"), dist.Rank(0)},
		"no rank":        {dist.WithStore(store), dist.WorldSize(2)},
		"a rank beyond":  {dist.WithStore(store), dist.WorldSize(2), dist.Rank(2)},
		"many ranks":     {dist.WithStore(store), dist.WorldSize(128*1024 + 1), dist.Rank(0)},
		"another method": {dist.InitMethod("mpi://"), dist.WorldSize(1), dist.Rank(0)},
		"no method":      {dist.InitMethod("\x7f://"), dist.WorldSize(1), dist.Rank(0)},
		"two meetings":   {dist.InitMethod("env://"), dist.WithStore(store)},
		"a nil option":   {nil},
		"no backend":     {dist.WithStore(store), dist.WorldSize(1), dist.Rank(0), dist.Backend("mpi")},
		"no device":      {dist.WithStore(store), dist.WorldSize(1), dist.Rank(0), dist.Backend("nccl")},
		"no time":        {dist.Timeout(0)},
	} {
		if g, err := dist.Init(ctx, opts...); !errors.Is(err, tensor.ErrArgument) || g != nil {
			t.Errorf("%s: %v, %v", name, g, err)
		}
	}
}

// TestInitWithoutOthers tests that Init ends with its timeout, and names the store, if there is none at the address and
// if a large job does not reach it.
func TestInitWithoutOthers(t *testing.T) {
	leak.Check(t)
	const host = "no-such-host.invalid:1234"
	for r := range 2 {
		_, err := dist.Init(ctx, dist.InitMethod("tcp://"+host), dist.Rank(r), dist.WorldSize(2), dist.Timeout(300*time.Millisecond))
		if !errors.Is(err, dist.ErrTimeout) || !strings.Contains(err.Error(), "no store at "+host) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	store, err := dist.NewTCPStore(ctx, "127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, err = dist.Init(ctx, dist.WithStore(store), dist.Rank(0), dist.WorldSize(128*1024), dist.Timeout(100*time.Millisecond))
	if !errors.Is(err, dist.ErrTimeout) || !strings.Contains(err.Error(), store.Addr()) || !strings.Contains(err.Error(), " of the first ") {
		t.Errorf("a large job: %v", err)
	}
}

// TestInitMethods tests that ranks meet by an address, by a file, and by variables for what the options do not say.
func TestInitMethods(t *testing.T) {
	leak.Check(t)
	server, err := dist.NewTCPStore(ctx, "127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	addr := server.Addr()
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(addr)
	at := "MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port
	for _, c := range []struct {
		method, vars string
		world        int
	}{
		{"tcp://" + addr, "", 3}, {"file://" + filepath.Join(t.TempDir(), "meet"), "", 3}, {"env://", at, 3}, {"env://", at + " RANK=x", 3},
		{"env://", at + " WORLD_SIZE=3", -1},
	} {
		setenv(t, c.vars)
		var all sync.WaitGroup
		for r := range 3 {
			all.Go(func() {
				g, err := dist.Init(ctx, dist.InitMethod(c.method), dist.Rank(r), dist.WorldSize(c.world))
				if err == nil {
					x := tensor.Full([]int{1}, float64(r))
					err = errors.Join(g.AllReduce(ctx, x, dist.Sum), want("sum", x, 3), g.Barrier(ctx), g.Close())
					x.Release()
				}
				if err != nil {
					t.Error(fmt.Errorf("%v: rank %d: %w", c, r, err))
				}
			})
		}
		all.Wait()
	}
}

// TestDebugLevel tests the variable with which collectives are compared.
func TestDebugLevel(t *testing.T) {
	leak.Check(t)
	for level, checked := range map[string]bool{"detail": true, "Detail": true, "info": false, "OFF": false, "": false} {
		t.Setenv("TORCH_DISTRIBUTED_DEBUG", level)
		ranks(t, 2, func(g *dist.Group) error {
			x := tensor.Ones([]int{4}, []tensor.DType{tensor.Float32, tensor.Int32}[g.Rank()]) // which gloo does not notice
			if err := g.AllReduce(ctx, x, dist.Max); (err != nil) != checked {
				return fmt.Errorf("level %q: %v", level, err)
			}
			return nil
		})
	}
	t.Setenv("TORCH_DISTRIBUTED_DEBUG", "verbose")
	if _, err := dist.Init(ctx, dist.Rank(0), dist.WorldSize(1)); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "verbose") {
		t.Errorf("an unknown level: %v", err)
	}
}
