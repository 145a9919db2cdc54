package dist

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	optional "github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// An Option is an option of Init, NewGroup or NewTCPStore.
type Option interface{ apply(*options) }

type options struct {
	method      string
	rank, world int
	store       *Store
	timeout     time.Duration
	checked     bool
	flight      string
	token       string
	backend     string
	backends    cshim.Backends
}

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// InitMethod says where Init meets the other ranks: "env://", the default, "tcp://host:port" for a store that rank 0 hosts,
// or "file:///path" for a file that all ranks can write. PyTorch: the argument init_method of init_process_group.
func InitMethod(url string) Option { return optionFunc(func(o *options) { o.method = url }) }

// Rank sets this process's rank for Init. PyTorch: the argument rank of init_process_group.
func Rank(rank int) Option { return optionFunc(func(o *options) { o.rank = rank }) }

// WorldSize sets the number of ranks for Init, at most 131,072. PyTorch: the argument world_size of init_process_group.
func WorldSize(n int) Option { return optionFunc(func(o *options) { o.world = n }) }

// WithStore makes Init meet the other ranks in a store. Rank and WorldSize must be set, too. PyTorch: the argument store of
// init_process_group.
func WithStore(s *Store) Option { return optionFunc(func(o *options) { o.store = s }) }

// Timeout limits how long a group waits for the other ranks, when it connects and in each collective, and how long
// NewTCPStore waits for its server; more than a year is a year. The default is DefaultTimeout. PyTorch: the argument
// timeout of init_process_group.
func Timeout(d time.Duration) Option { return optionFunc(func(o *options) { o.timeout = d }) }

// CheckCollectives makes the ranks compare kind, sizes and dtypes before each collective of a group that waits for all
// ranks. If they differ, it is an error on all ranks, where otherwise gloo may end a process. It takes two more messages a
// collective. All ranks must give it. It is on if the environment variable TORCH_DISTRIBUTED_DEBUG is DETAIL, as in PyTorch.
func CheckCollectives(on ...bool) Option {
	return optionFunc(func(o *options) { o.checked = optional.On(on) })
}

// Backend names what a group's ranks communicate by: "gloo", the default, for tensors on the CPU, "nccl" for tensors on CUDA
// devices, or "cpu:gloo,cuda:nccl" for both; see the package documentation. PyTorch: the argument backend of
// init_process_group.
func Backend(name string) Option { return optionFunc(func(o *options) { o.backend = name }) }

var backends = map[string]cshim.Backends{"gloo": cshim.Gloo, "cpu:gloo": cshim.Gloo, "nccl": cshim.NCCL, "cuda:nccl": cshim.NCCL,
	"cpu:gloo,cuda:nccl": cshim.Gloo | cshim.NCCL, "cuda:nccl,cpu:gloo": cshim.Gloo | cshim.NCCL}

func optionsOf(op string, opts []Option) (*options, error) {
	debug := os.Getenv("TORCH_DISTRIBUTED_DEBUG")
	if !slices.Contains([]string{"", "OFF", "INFO", "DETAIL"}, strings.ToUpper(debug)) {
		return nil, refuse.Error(op, tensor.ErrArgument, "TORCH_DISTRIBUTED_DEBUG=%q: OFF, INFO or DETAIL is needed", debug)
	}
	o := &options{rank: -1, world: -1, timeout: DefaultTimeout, backend: "gloo", checked: strings.EqualFold(debug, "DETAIL"),
		flight: os.Getenv("LINSTOCK_FLIGHT"), token: os.Getenv("LINSTOCK_TOKEN")}
	for _, opt := range opts {
		if opt == nil {
			return nil, refuse.NilOption(op)
		}
		opt.apply(o)
	}
	if o.backends = backends[o.backend]; o.backends == 0 {
		return nil, refuse.Error(op, tensor.ErrArgument, `Backend %q: "gloo", "nccl" or "cpu:gloo,cuda:nccl" is needed`, o.backend)
	}
	if o.timeout < time.Millisecond {
		return nil, refuse.Error(op, tensor.ErrArgument, "timeout %v: at least a millisecond is needed", o.timeout)
	}
	return o, nil
}

// Environment is what a launcher tells a process.
type Environment struct {
	Rank, WorldSize           int
	LocalRank, LocalWorldSize int    // among the processes of this machine; LocalWorldSize is 0 if it is not known
	Addr                      string // "host:port" of the store; empty if it is not known
	AgentStore                bool   // the launcher hosts the store, not rank 0
	Restarts                  int    // how often torchrun has started the processes again
	OneAgent                  bool   // torchrun runs on one machine only
}

// names of the variables of each launcher: rank, number of ranks, rank on the machine, number on the machine.
var launchers = [][4]string{
	{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, // torchrun, PyTorchJob
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, // MPICH, Intel MPI
	{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
}

// ReadEnvironment reads the variables that torchrun and Kubernetes' PyTorchJob set (RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT), or else those of mpirun (Open MPI, MPICH, Intel MPI) or of Slurm's srun. mpirun does not say where the
// store is: set MASTER_ADDR and MASTER_PORT, too. With Slurm the defaults are the first host of the job and a port that
// follows from its number.
func ReadEnvironment() (*Environment, error) { return readEnvironment(os.Getenv) }

// readEnvironment is ReadEnvironment, to which getenv gives the variables in launchers.
func readEnvironment(getenv func(name string) string) (*Environment, error) {
	const op = "ReadEnvironment"
	var e Environment
	var found bool
	for i, l := range launchers {
		if getenv(l[0]) == "" || getenv(l[1]) == "" {
			continue
		}
		if rank := getenv(l[0]); l[0] == "PMI_RANK" && getenv(l[2]) == "" && rank == os.Getenv("SLURM_PROCID") {
			continue // srun has set them for PMI-2
		}
		for k, to := range []*int{&e.Rank, &e.WorldSize, &e.LocalRank, &e.LocalWorldSize} {
			s := getenv(l[k])
			if s == "" {
				continue
			}
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 {
				return nil, refuse.Error(op, tensor.ErrArgument, "%s=%q is not a number", l[k], s)
			}
			*to = n
		}
		if e.Rank >= e.WorldSize {
			return nil, refuse.Error(op, tensor.ErrArgument, "%s=%d, but %s=%d", l[0], e.Rank, l[1], e.WorldSize)
		}
		host, port := os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT")
		if slurm := i == len(launchers)-1; slurm {
			if host == "" {
				host = firstHost(os.Getenv("SLURM_STEP_NODELIST"), os.Getenv("SLURM_JOB_NODELIST"))
			}
			if job, err := strconv.Atoi(os.Getenv("SLURM_JOB_ID")); port == "" && err == nil {
				// Jobs that share a machine have different numbers, and so most likely different ports.
				port = strconv.Itoa(15000 + job%10000)
			}
		}
		if host != "" && port != "" {
			if strings.HasPrefix(host, "[") { // an IPv6 address as in a URL
				host = strings.TrimSuffix(host[1:], "]")
			}
			e.Addr = net.JoinHostPort(host, port)
		}
		found = true
		break
	}
	if rank, size := launchers[0][0], launchers[0][1]; !found && (getenv(rank) == "") != (getenv(size) == "") {
		return nil, refuse.Error(op, tensor.ErrArgument, "only one of %s and %s is set, or given to Init as Rank or WorldSize", rank, size)
	}
	if !found {
		return nil, refuse.Error(op, tensor.ErrArgument, "neither RANK and WORLD_SIZE nor the variables of mpirun or srun are set: "+
			"start the program with torchrun, mpirun or srun, or give InitMethod, Rank and WorldSize")
	}
	e.AgentStore = os.Getenv("TORCHELASTIC_USE_AGENT_STORE") == "True"
	e.Restarts, _ = strconv.Atoi(os.Getenv("TORCHELASTIC_RESTART_COUNT"))
	e.OneAgent = os.Getenv("GROUP_WORLD_SIZE") == "1"
	return &e, nil
}

// firstHost returns the first host of the first list that is not empty, "node07" for "node[07-09,12],gpu3".
func firstHost(lists ...string) string {
	for _, list := range lists {
		if list == "" {
			continue
		}
		prefix, rest, bracket := strings.Cut(list, "[")
		if comma := strings.IndexByte(prefix, ','); comma >= 0 || !bracket {
			host, _, _ := strings.Cut(list, ",")
			return host
		}
		inside, suffix, _ := strings.Cut(rest, "]")
		suffix, _, _ = strings.Cut(suffix, ",")
		first := inside[:strings.IndexAny(inside+",", ",-")]
		return prefix + first + suffix
	}
	return ""
}

// Init connects this process to the others of its job and returns the group of all. It waits for them until ctx ends or
// the timeout is over. What the options do not say it reads from the environment, see [ReadEnvironment]. Options:
// InitMethod, Rank and WorldSize, WithStore, Backend, Timeout, CheckCollectives, FlightRecorder, Token. Ranks written in
// Python, which call init_process_group("gloo"), or with the same backend, can be in the group.
// PyTorch: torch.distributed.init_process_group.
func Init(ctx context.Context, opts ...Option) (*Group, error) {
	const op = "Init"
	if err := refuse.Ended(op, ctx, ErrTimeout); err != nil {
		return nil, err
	}
	o, err := optionsOf(op, opts)
	if err != nil {
		return nil, err
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	g, missing, err := o.start(ctx, op)
	// A wait may end a moment before ctx does.
	ended := ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)
	if errors.Is(err, ErrTimeout) && ended && outer.Err() == nil {
		return nil, fmt.Errorf("%w (not all ranks connected within the Timeout, %v%s)", err, o.timeout, missing)
	}
	return g, err
}

// start connects to the others and returns the group of all. missing says which ranks have not reached the store.
func (o *options) start(ctx context.Context, op string) (g *Group, missing string, err error) {
	host := 0
	store := o.store
	if store == nil {
		if store, host, err = o.meet(ctx, op); err != nil {
			return nil, "", err
		}
		defer store.Close() // the group keeps what it needs
	} else {
		host = -1
		if o.method != "" {
			return nil, "", refuse.Error(op, tensor.ErrArgument, "both a store and InitMethod %q are given", o.method)
		}
	}
	if err := checkRank(op, o.rank, o.world); err != nil {
		return nil, "", err
	}
	j, err := newJob(op, store, host)
	if err != nil {
		return nil, "", err
	}
	g = &Group{name: "0", rank: o.rank, size: o.world, timeout: o.timeout, checked: o.checked, backend: o.backend, backends: o.backends, job: j}
	for r := range o.world {
		g.members = append(g.members, r)
	}
	if err = j.store.setWithin(ctx, op, o.timeout, addressKey(o.rank), []byte(j.address())); err == nil {
		err = g.prove(ctx, op, o.token)
	}
	if err == nil {
		err = o.record(ctx, op, j)
	}
	if err == nil {
		g.store, err = NewPrefixStore(g.name+"/", j.store)
	}
	if err == nil {
		err = g.connect(ctx, op, g.name)
	}
	if err != nil {
		if errors.Is(err, ErrTimeout) {
			soon, cancel := context.WithTimeout(context.Background(), grace)
			defer cancel()
			missing, _, _ = within(soon, func() (string, error) { return g.missing(), nil }, func(string) {}) // the store may not answer
		}
		_ = g.Close()
		return nil, missing, err
	}
	return g, "", nil
}

// missing says which ranks have not reached the store, if any. Those written in Python have no address in it.
func (g *Group) missing() string {
	const most = 16
	var none []string
	asked, begun := 0, time.Now()
	for r := range g.size {
		if len(none) > most && time.Since(begun) > tardy {
			break
		}
		asked++
		if there, err := g.job.store.Check(addressKey(r)); err != nil {
			return ""
		} else if !there {
			none = append(none, strconv.Itoa(r))
		}
	}
	if len(none) == 0 {
		return ""
	}
	text := strings.Join(none[:min(most, len(none))], ", ")
	if len(none) > most {
		of := strconv.Itoa(asked)
		if asked < g.size {
			of = "the first " + of
		}
		text += fmt.Sprintf(", … (%d of %s)", len(none), of)
	}
	at := "the store"
	if g.job.store.addr != "" {
		at += " at " + g.job.store.addr
	}
	return fmt.Sprintf("; these have not come to %s, unless they are written in Python: rank %s", at, text)
}

// maxRanks is the most ranks of a job: gloo waits for a key of each in one message, and c10d's TCP store ends the
// connection if a message has more keys.
const maxRanks = 128 * 1024

func checkRank(op string, rank, world int) error {
	if world < 1 {
		return refuse.Error(op, tensor.ErrArgument, "%d ranks: WorldSize is needed", world)
	}
	if world > maxRanks {
		return refuse.Error(op, tensor.ErrArgument, "%d ranks: a job has at most %d", world, maxRanks)
	}
	if rank < 0 || rank >= world {
		return refuse.Error(op, tensor.ErrArgument, "rank %d: a number in [0, %d) is needed", rank, world)
	}
	return nil
}

// meet returns the store of the method, the rank that hosts it, or -1, and sets rank and world.
func (o *options) meet(ctx context.Context, op string) (s *Store, host int, err error) {
	if o.method == "" || o.method == "env://" {
		return o.meetByEnvironment(ctx, op)
	}
	u, err := url.Parse(o.method)
	if err != nil {
		return nil, 0, refuse.Error(op, tensor.ErrArgument, "InitMethod %q: %v", o.method, err)
	}
	if err := checkRank(op, o.rank, o.world); err != nil {
		return nil, 0, err
	}
	switch u.Scheme {
	case "tcp":
		s, err = o.meetAt(ctx, op, u.Host, o.rank == 0)
		return s, 0, err
	case "file":
		s, err = fileStore(ctx, op, u.Path, o.world)
		return s, -1, err
	}
	return nil, 0, refuse.Error(op, tensor.ErrArgument, "InitMethod %q: env://, tcp://host:port or file:///path is needed", o.method)
}

func (o *options) meetAt(ctx context.Context, op, addr string, server bool) (*Store, error) {
	return tcpStore(ctx, op, addr, cshim.TCPStore{Server: server, Shared: server, Workers: o.world}, o.timeout)
}

func (o *options) meetByEnvironment(ctx context.Context, op string) (s *Store, host int, err error) {
	e, err := ReadEnvironment()
	if err != nil {
		// As in PyTorch, an option replaces its variable.
		given := map[string]int{"RANK": o.rank, "WORLD_SIZE": o.world}
		e, err = readEnvironment(func(name string) string {
			if n, is := given[name]; is && n >= 0 {
				return strconv.Itoa(n)
			}
			return os.Getenv(name)
		})
	}
	if err != nil {
		return nil, 0, err
	}
	for _, given := range []struct {
		option *int
		of     int
	}{{&o.rank, e.Rank}, {&o.world, e.WorldSize}} {
		if *given.option < 0 {
			*given.option = given.of
		}
	}
	if err := checkRank(op, o.rank, o.world); err != nil {
		return nil, 0, err
	}
	if e.Addr == "" {
		return nil, 0, refuse.Error(op, tensor.ErrArgument, "MASTER_ADDR or MASTER_PORT is not set")
	}
	s, err = o.meetAt(ctx, op, e.Addr, o.rank == 0 && !e.AgentStore)
	if err != nil || !e.AgentStore {
		return s, 0, err
	}
	// The launcher's store may outlive a restart, with the addresses of processes that are gone. The count is each
	// launcher's own, so it is the same for all ranks only if there is one launcher, and ranks in Python do not read it:
	// docs/distributed.md says how several launchers make a store for each attempt.
	if e.Restarts > 0 && e.OneAgent {
		defer s.Close()
		s, err = NewPrefixStore(fmt.Sprintf("/worker/attempt_%d", e.Restarts), s)
	}
	return s, -1, err
}
