package checkpoint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/quick"
	"time"

	mathrand "math/rand"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// again saves v and returns the loaded value.
func again[T any](t *testing.T, name string, v T) (T, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x")
	var got T
	err := checkpoint.SaveTraining(path, &nn.Sequential{}, nil, checkpoint.Value(name, &v))
	if err != nil {
		if _, stat := os.Stat(path); !errors.Is(stat, os.ErrNotExist) {
			t.Errorf("a save that failed left a file (%v)", stat)
		}
		return got, err
	}
	if err := checkpoint.LoadValues(path, checkpoint.Value(name, &got)); err != nil {
		t.Errorf("%.40q: SaveTraining wrote a file that LoadValues refuses: %v", name, err)
	}
	return got, os.Remove(path)
}

func comesBack[T any](t *testing.T, v T) {
	t.Helper()
	got, err := again(t, "v", v)
	if err != nil || !reflect.DeepEqual(got, v) {
		t.Errorf("%T: got %.200v, %v; want %.200v", v, got, err, v)
	}
}

func TestTenMillionLosses(t *testing.T) {
	leak.Check(t)
	losses := make([]float64, 10_000_000)
	for i := range losses {
		losses[i] = 11 / (1 + float64(i)/1000)
	}
	losses[77] = math.NaN()
	got, err := again(t, "losses", losses)
	if err != nil || len(got) != len(losses) {
		t.Fatalf("%d losses, %v", len(got), err)
	}
	for i, v := range got {
		if math.Float64bits(v) != math.Float64bits(losses[i]) {
			t.Fatalf("loss %d is %v, want %v", i, v, losses[i])
		}
	}
	// A history that is not a plain slice, too large for the header of a file.
	type epoch struct {
		Train, Val float64
		Note       string
	}
	comesBack(t, epochs(300_000, func(i int) epoch { return epoch{float64(i), math.Inf(1), "\n\"ä\x00"} }))
}

func epochs[T any](n int, f func(int) T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = f(i)
	}
	return all
}

type level int8

func (l level) MarshalText() ([]byte, error) { return []byte(strings.Repeat("x", int(l))), nil }
func (l *level) UnmarshalText(b []byte) error {
	*l = level(len(b))
	return nil
}

type custom struct{ a, b int }

func (c custom) MarshalJSON() ([]byte, error) { return json.Marshal([]int{c.a, c.b}) }
func (c *custom) UnmarshalJSON(b []byte) error {
	var two [2]int
	err := json.Unmarshal(b, &two)
	c.a, c.b = two[0], two[1]
	return err
}

// everything has fields of all kinds that a program may save.
type everything struct {
	B      bool
	I      int
	I8     int8
	I16    int16
	I32    int32
	I64    int64
	U      uint
	U8     uint8
	U16    uint16
	U32    uint32
	U64    uint64
	F32    float32
	F64    float64
	S      string
	Bytes  []byte
	Ints   []int
	Array  [3]float32
	Pair   [2]byte
	Text   []string
	Bools  []bool
	Deep   [][]float64
	ByName map[string]float64
	ByNum  map[int]string
	Nested map[string]map[string][]int
	P      *int
	PP     **string
	Inner  struct {
		X, Y float64
		Z    *struct{ N int }
	}
	Tagged int `json:"other_name"`
	Empty  int `json:"empty,omitempty"`
	Omit   int `json:"-"`
}

func TestValuesOfAllKinds(t *testing.T) {
	leak.Check(t)
	r := mathrand.New(mathrand.NewSource(1))
	for size := range 60 {
		v, ok := quick.Value(reflect.TypeFor[everything](), r)
		if !ok {
			t.Fatal("no value")
		}
		e := v.Interface().(everything)
		e.Omit = 0
		if size%3 == 0 {
			e.S = string(randomBytes(r, size*100)) // usually not UTF-8
			e.F64, e.F32 = math.Inf(-1), math.SmallestNonzeroFloat32
		}
		comesBack(t, e)
	}
	comesBack(t, true)
	comesBack(t, 3.5)
	comesBack(t, math.Inf(1))
	comesBack(t, math.Copysign(0, -1))
	comesBack(t, uint64(math.MaxUint64))
	comesBack(t, int64(math.MinInt64))
	comesBack(t, []float32(nil))
	comesBack(t, []string(nil))
	comesBack(t, []string{})
	comesBack(t, map[string]int(nil))
	comesBack(t, []bool{true, false})
	comesBack(t, []int{1, -2, math.MaxInt})
	comesBack(t, []uint{1, math.MaxUint})
	comesBack(t, []byte("text"))
	comesBack(t, []level{1, 2, -3}) // stored as a slice of numbers
	comesBack(t, struct{ L map[string]level }{map[string]level{"a": 7}})
	comesBack(t, custom{3, 4})
	comesBack(t, map[string]custom{"x": {1, -1}})
	comesBack(t, json.RawMessage(`{"a":1}`))
	comesBack(t, time.Date(2026, 11, 24, 5, 41, 0, 123456789, time.UTC))
	comesBack(t, []time.Duration{time.Second, -1})
	comesBack(t, []*big.Int{big.NewInt(-7), big.NewInt(0).Lsh(big.NewInt(1), 63), big.NewInt(0).Lsh(big.NewInt(-1), 64)})
	comesBack(t, netip.MustParseAddr("192.0.2.1"))
	comesBack[any](t, map[string]any{"i": int64(-3), "u": int64(3), "f": 2.5, "b": true, "s": "\xff", "n": nil, "y": []byte{1}, "l": []any{"x", map[string]any{}}})
	bits := math.Float64frombits(0x7ff8_0000_dead_beef) // a NaN with a payload
	if got, err := again(t, "nan", map[string][]any{"losses": {bits}}); err != nil || math.Float64bits(got["losses"][0].(float64)) != math.Float64bits(bits) {
		t.Errorf("NaN: %v, %v", got, err)
	}
	if got, err := again(t, "nan", struct{ Best, Last float32 }{Last: float32(math.NaN())}); err != nil || got.Last == got.Last {
		t.Errorf("NaN: %v, %v", got, err)
	}
}

func randomBytes(r *mathrand.Rand, n int) []byte {
	b := make([]byte, n)
	r.Read(b)
	return b
}

// Values around the sizes at which an encoding or its reader may change: every value that is saved can be read.
func TestValuesOfAllSizes(t *testing.T) {
	leak.Check(t)
	for _, n := range []int{0, 1, 23, 24, 255, 256, 65535, 65536, 1<<17 - 1, 1 << 17, 1<<17 + 1, 1<<21 + 1} {
		comesBack(t, strings.Repeat("x", n))
		comesBack(t, strings.Repeat("\n\"\\", n/3))
		comesBack(t, strings.Repeat("\x00", n))
		comesBack(t, append([]uint16(nil), make([]uint16, n)...))
		if n > 200_000 {
			continue
		}
		comesBack(t, epochs(n, func(i int) any { return int64(i) }))
		keys := make(map[string]float64, n)
		for i := range n {
			keys[fmt.Sprintf("\"%d\n", i)] = float64(i)
		}
		comesBack(t, keys)
	}
	for _, n := range []int{1, 100, 2 << 20, 3 << 20} {
		name := strings.Repeat("\n\"ä", n/4)
		if got, err := again(t, name, 5); err != nil || got != 5 {
			t.Errorf("a name of %d bytes: %d, %v", len(name), got, err)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		v := tree(r, 1+r.IntN(60))
		comesBack(t, v)
	}
}

// tree returns a random value of type any with the given depth.
func tree(r *rand.Rand, depth int) any {
	if depth == 0 {
		return []any{nil, int64(r.Uint64()), r.NormFloat64(), "s\x80", r.IntN(2) == 0}[r.IntN(5)]
	}
	if r.IntN(2) == 0 {
		return []any{tree(r, depth-1), tree(r, 0)}
	}
	return map[string]any{fmt.Sprint(r.IntN(9)): tree(r, depth-1), "other": tree(r, 0)}
}

type chain struct{ Next *chain }

// A value that is nested too deeply to be read is rejected when it is saved: again fails the test if a value is
// saved and then rejected. Each level here counts as two, an interface and a slice or a pointer and a struct.
func TestNesting(t *testing.T) {
	leak.Check(t)
	for _, depth := range []int{1, 31, 33, 1000, 4999, 5000, 5001, 9998, 9999, 10_000, 10_001, 10_002, 20_000, 100_000} {
		var lists any
		var structs *chain
		for range depth {
			lists = []any{lists}
			structs = &chain{structs}
		}
		_, err := again(t, "lists", lists)
		if want := depth < 5000; err != nil == want {
			t.Errorf("lists of depth %d: %v", depth, err)
		}
		if _, err := again(t, "structs", structs); err != nil == (depth < 5000) {
			t.Errorf("structs of depth %d: %v", depth, err)
		}
	}
	loop := &chain{}
	loop.Next = loop
	if _, err := again(t, "loop", loop); err == nil || !strings.Contains(err.Error(), `"value.loop"`) || !strings.Contains(err.Error(), "contains itself") {
		t.Errorf("a value that contains itself: %v", err)
	}
}

type writeOnly struct{ V error }

// A value that could be saved but not read is an error when it is saved. The error names it.
func TestValuesThatCannotBeReadAreNotSaved(t *testing.T) {
	leak.Check(t)
	for name, part := range map[string]checkpoint.Part{
		"chan":      checkpoint.Value("chan", new(chan int)),
		"func":      checkpoint.Value("func", &struct{ F func() }{func() {}}),
		"complex":   checkpoint.Value("complex", &[]complex64{1}),
		"interface": checkpoint.Value("interface", &writeOnly{errors.ErrUnsupported}),
		"large":     checkpoint.Value("large", big.NewInt(0).Lsh(big.NewInt(1), 64)),
		"nil":       checkpoint.Value[int]("nil", nil),
	} {
		path := filepath.Join(t.TempDir(), "x")
		if err := checkpoint.SaveTraining(path, &nn.Sequential{}, nil, part); err == nil || !strings.Contains(err.Error(), `"value.`+name+`"`) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a save that failed left a file: %v", name, err)
		}
	}
	for _, part := range []checkpoint.Part{checkpoint.Loader(nil), checkpoint.Schedule(nil), checkpoint.Scaler(nil), {}} {
		if err := checkpoint.SaveTraining(filepath.Join(t.TempDir(), "x"), &nn.Sequential{}, nil, part); err == nil {
			t.Error("a part of nil was saved")
		}
	}
}

func TestScaler(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x")
	saved, err := optim.NewGradScaler(optim.InitScale(1024), optim.GrowthInterval(7))
	if err != nil {
		t.Fatal(err)
	}
	state := saved.StateDict()
	state["_growth_tracker"] = 3
	loaded, err := optim.NewGradScaler()
	if err := errors.Join(err, saved.LoadStateDict(state), checkpoint.SaveTraining(path, &nn.Sequential{}, nil, checkpoint.Scaler(saved)),
		checkpoint.LoadTraining(path, &nn.Sequential{}, nil, checkpoint.Scaler(loaded))); err != nil {
		t.Fatal(err)
	}
	if got := loaded.StateDict(); !maps.Equal(got, state) {
		t.Errorf("the state %v was restored as %v", state, got)
	}
	off, err := optim.NewGradScaler(optim.Enabled(false))
	if err := errors.Join(err, checkpoint.LoadTraining(path, &nn.Sequential{}, nil, checkpoint.Scaler(off)),
		checkpoint.SaveTraining(path, &nn.Sequential{}, nil, checkpoint.Scaler(off)), checkpoint.LoadTraining(path, &nn.Sequential{}, nil, checkpoint.Scaler(off))); err != nil {
		t.Errorf("the state of a scaler with Enabled(false): %v", err)
	}
	if err := checkpoint.LoadTraining(path, &nn.Sequential{}, nil, checkpoint.Scaler(loaded)); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("an empty state is loaded: %v", err)
	}
}

func TestValueOfAnotherTypeIsAnError(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x")
	losses, step, name := []float64{1, 2}, 3, "n"
	if err := checkpoint.SaveTraining(path, &nn.Sequential{}, nil, checkpoint.Value("losses", &losses), checkpoint.Value("step", &step), checkpoint.Value("name", &name)); err != nil {
		t.Fatal(err)
	}
	var f32 []float32
	var ints map[string]int
	wide, kept := []uint8(nil), 9
	for _, part := range []checkpoint.Part{checkpoint.Value("losses", &f32), checkpoint.Value("losses", &ints), checkpoint.Value("step", &f32), checkpoint.Value("name", &kept),
		checkpoint.Value[int]("step", nil), checkpoint.Value("none", &kept), checkpoint.Loader(nil)} {
		if err := checkpoint.LoadValues(path, part); err == nil {
			t.Error("a value was read as another type")
		}
	}
	if f32 != nil || ints != nil || kept != 9 {
		t.Errorf("a load that failed changed %v, %v, %v", f32, ints, kept)
	}
	// The bytes of a value's CBOR can be loaded as such.
	if err := checkpoint.LoadValues(path, checkpoint.Value("step", &wide)); err != nil || !bytes.Equal(wide, []byte{3}) {
		t.Errorf("%v, %v", wide, err)
	}
}

// Metadata and names with any text can be read again, whatever part of them is escapes.
func TestHeadersOfEscapes(t *testing.T) {
	leak.Check(t)
	scoped(t, func() {
		path := filepath.Join(t.TempDir(), "x")
		metadata := map[string]string{"a": strings.Repeat("\n\"<ä\U0001f600\x01\\", 400_000), "\n": "\u2028"}
		all := map[string]*tensor.Tensor{strings.Repeat("\t", 3<<20): tensor.Ones([]int{1}), "": tensor.Zeros([]int{2}), "\n": tensor.Full([]int{3}, 2)}
		if err := checkpoint.Save(path, all, metadata); err != nil {
			t.Fatal(err)
		}
		f := open(t, path)
		equal(t, f, all)
		if !reflect.DeepEqual(f.Metadata(), metadata) {
			t.Error("the metadata differs")
		}
	})
}

type starts struct{ Step, X int }

type ends struct{ Step, Y int }

type hides struct {
	starts
	Step int
}

type inner struct {
	*inner
	N int
}

// clock stores itself, and clocked has its methods.
type clock struct{ t time.Time }

func (c clock) MarshalText() ([]byte, error)     { return c.t.MarshalText() }
func (c *clock) UnmarshalText(text []byte) error { return c.t.UnmarshalText(text) }

type clocked struct {
	clock
	Step int
}

// marked embeds a struct of which the default would store nothing.
type marked struct {
	clock
	mark
}

type mark struct{ set bool }

// named has methods of its own, which store all of it.
type named struct {
	clock
	Step int
}

func (n named) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%d %d", n.t.Unix(), n.Step), nil
}

func (n *named) UnmarshalText(text []byte) error {
	var seconds int64
	_, err := fmt.Sscan(string(text), &seconds, &n.Step)
	n.t = time.Unix(seconds, 0).UTC()
	return err
}

// delegate stores itself as what it points to does.
type delegate struct{ *clock }

func (d *delegate) UnmarshalText(text []byte) error {
	d.clock = &clock{}
	return d.clock.UnmarshalText(text)
}

// link does so with an exported pointer.
type link struct{ *url.URL }

func (l *link) UnmarshalBinary(text []byte) error {
	l.URL = &url.URL{}
	return l.URL.UnmarshalBinary(text)
}

// fragile stores nothing, and sturdy has a method of its own.
type fragile struct{}

func (fragile) MarshalText() ([]byte, error) { panic("stored as a fragile") }

type sturdy struct {
	fragile //lint:ignore U1000 its method would be promoted
	N       int
}

func (s sturdy) MarshalText() ([]byte, error)     { return fmt.Append(nil, s.N), nil }
func (s *sturdy) UnmarshalText(text []byte) error { return json.Unmarshal(text, &s.N) }

// Node stores its name alone.
type Node struct {
	*Node
	Name string
}

func (n Node) MarshalText() ([]byte, error)     { return []byte(n.Name), nil }
func (n *Node) UnmarshalText(text []byte) error { n.Name = string(text); return nil }

// Left and Right, too, may contain themselves.
type Left struct {
	*Right
	Name string
}

type Right struct{ *Left }

func (l Left) MarshalText() ([]byte, error)     { return []byte(l.Name), nil }
func (l *Left) UnmarshalText(text []byte) error { l.Name = string(text); return nil }
func (r Right) MarshalText() ([]byte, error)    { return []byte(r.Name), nil }
func (*Right) UnmarshalText(_ []byte) error     { return nil }

// loop has no method.
type loop struct {
	*loop
	Name string
}

// blank has a method that stores it as an empty text.
type blank struct {
	starts
	Step int
}

func (blank) MarshalText() ([]byte, error)  { return []byte{}, nil }
func (*blank) UnmarshalText(_ []byte) error { return nil }

// texter is what a struct may embed to have the methods of any type that has them.
type texter interface {
	MarshalText() ([]byte, error)
	UnmarshalText(text []byte) error
}

func value[T any](v T) checkpoint.Part { return checkpoint.Value("v", &v) }

// A struct of which a field would not be stored is an error.
func TestFieldsThatWouldBeLost(t *testing.T) {
	leak.Check(t)
	when, address := time.Unix(5, 0).UTC(), netip.MustParseAddr("192.0.2.1")
	path := filepath.Join(t.TempDir(), "values")
	for want, part := range map[string]checkpoint.Part{
		"the fields starts.Step and Step of checkpoint_test.hides": value(hides{starts{1, 2}, 3}),
		"the fields starts.Step and ends.Step": value(struct {
			starts
			ends
		}{starts{1, 2}, ends{3, 4}}),
		`"lr"`: value([]struct {
			LR   float64 `cbor:"lr"`
			Rate float64 `json:"lr,omitempty"`
		}{{1, 2}}),
		`"Step"`: value(map[string]any{"x": struct {
			Step int
			N    int `json:"Step"`
		}{1, 2}}),
		"the embedded checkpoint_test.inner": value(inner{&inner{nil, 1}, 2}),
		"the method of the embedded time.Time": value(struct {
			time.Time
			N int
		}{when, 1}),
		"the method of the embedded netip.Addr": value(struct {
			netip.Addr
			N int
		}{address, 1}),
		"the embedded netip.Addr in": value(struct {
			netip.Addr
			netip.AddrPort
		}{Addr: address}),
		"netip.Addr } is stored by the method of the embedded time.Time": value(struct {
			time.Time
			netip.Addr
		}{when, address}),
		"checkpoint_test.clocked is stored by the method of the embedded checkpoint_test.clock": value(clocked{clock{when}, 5}),
		"clocked is stored by the method of the embedded":                                       value(map[string]any{"x": struct{ clocked }{clocked{clock{when}, 5}}}),
		"checkpoint_test.starts }": value(struct {
			clock
			starts
		}{clock{when}, starts{Step: 1}}),
		"the embedded checkpoint_test.clock, which": value(struct {
			texter
			N int
		}{&clock{when}, 1}), // and not a panic
	} {
		if err := checkpoint.SaveValues(path, part); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	comesBack(t, struct {
		starts
		ends `json:"ends"`
	}{starts{1, 2}, ends{3, 4}})
	comesBack(t, struct {
		Step int
		Old  starts
		Lost int `json:"-"`
	}{Step: 1, Old: starts{2, 3}})
	comesBack(t, struct{ netip.Addr }{address})
	comesBack(t, clocked{clock: clock{when}})
	comesBack(t, marked{clock{when}, mark{}})
	if got, err := again(t, "v", marked{clock{when}, mark{true}}); err != nil || !got.t.Equal(when) {
		t.Errorf("%v, %v", got, err)
	}
	comesBack(t, named{clock{when}, 5})
	comesBack(t, delegate{&clock{when}})
	comesBack(t, link{&url.URL{Path: "x"}})
	comesBack(t, sturdy{N: 5})
	if _, err := again(t, "v", blank{Step: 1}); err != nil {
		t.Error(err)
	}
}

// A method that panics is an error of the save or load that calls it.
func TestMethodsThatPanic(t *testing.T) {
	leak.Check(t)
	when := time.Unix(5, 0).UTC()
	path := filepath.Join(t.TempDir(), "values")
	type texts struct {
		texter
		N int
	}
	for name, part := range map[string]checkpoint.Part{
		"an embedded interface":       value(texts{&clock{when}, 0}),
		"an embedded pointer":         value(struct{ *clock }{&clock{when}}),
		"an exported pointer":         value(struct{ *url.URL }{&url.URL{Path: "x"}}),
		"within":                      value(map[string][]struct{ *clock }{"x": {{&clock{when}}}}),
		"an embedded nil interface":   value(texts{nil, 0}),
		"an embedded nil pointer":     value(delegate{}),
		"a method that always panics": value(fragile{}),
	} {
		if err := checkpoint.SaveValues(path, part); err == nil || !strings.Contains(err.Error(), ", or of a part of it, panicked: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := checkpoint.SaveValues(path, value(clock{when})); err != nil {
		t.Fatal(err)
	}
	old := clock{time.Unix(6, 0).UTC()}
	pointer, iface := struct{ *clock }{&old}, texts{&old, 7}
	for name, part := range map[string]checkpoint.Part{"pointer": checkpoint.Value("v", &pointer), "interface": checkpoint.Value("v", &iface)} {
		if err := checkpoint.LoadValues(path, part); err == nil || !strings.Contains(err.Error(), ", or of a part of it, panicked: ") {
			t.Errorf("a load into an embedded %s: %v", name, err)
		}
	}
	if pointer.clock != &old || iface != (texts{&old, 7}) || old.t != time.Unix(6, 0).UTC() {
		t.Errorf("loads that failed have set %v, %v, %v", pointer, iface, old)
	}
}

// A struct with a method may embed pointers that lead to itself.
func TestEmbeddedCycles(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "values")
	n := Node{Name: "x"}
	n.Node = &n
	if got, err := again(t, "v", n); err != nil || got != (Node{nil, "x"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := again(t, "v", Node{&Node{nil, "x"}, "x"}); err != nil || got != (Node{nil, "x"}) {
		t.Errorf("%v, %v", got, err)
	}
	right := Right{&Left{}}
	right.Left.Right = &right
	r := loop{}
	r.loop = &r
	type holder struct {
		clock
		*loop
	}
	type texts struct{ texter }
	self := &texts{}
	self.texter = self
	for name, part := range map[string]checkpoint.Part{"Right": value(right), "Left": value(*right.Left), "loop": value(holder{clock{}, &r}),
		"an interface": checkpoint.Value("v", self)} {
		if err := checkpoint.SaveValues(path, part); err == nil || !strings.Contains(err.Error(), "contains itself") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A time is restored with its instant, and with the offset of its zone if that has no seconds.
func TestTimes(t *testing.T) {
	leak.Check(t)
	for offset, want := range map[int]int{0: 0, 3600: 3600, -9000: -9000, 1172: 0, -59: 0, 60: 60} {
		when := time.Date(1900, 1, 1, 0, 0, 0, 7, time.FixedZone("zone", offset))
		for _, v := range []any{when, map[string]any{"times": []time.Time{when}}} {
			got, err := again(t, "time", v)
			if m, ok := got.(map[string]any); ok {
				got = m["times"].([]any)[0]
			}
			back, _ := got.(time.Time)
			if _, o := back.Zone(); err != nil || !back.Equal(when) || o != want {
				t.Errorf("offset %d: %v becomes %v, %v", offset, when, got, err)
			}
		}
	}
	for _, when := range []time.Time{time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if _, err := again(t, "time", when); err == nil {
			t.Errorf("%v is saved", when)
		}
	}
}

// A value of which nothing would be stored is an error, and so are tensors, which a checkpoint stores by other means.
func TestValuesThatWouldBeLost(t *testing.T) {
	leak.Check(t)
	x := tensor.Ones([]int{2})
	defer x.Release()
	layer := nn.NewLinear(2, 2)
	defer nn.Release(layer)
	opt, err := optim.NewSGD(nn.Parameters(layer), 0.1)
	if err != nil {
		t.Fatal(err)
	}
	generator := tensor.NewGenerator(tensor.CPU)
	type hidden struct{ private int }
	type holder struct {
		Name string
		X    *tensor.Tensor
	}
	held, values := holder{"x", x}, map[string]*tensor.Tensor{"x": x}
	state, secret := opt.StateDict(), map[string]*hidden{"a": {private: 1}}
	path := filepath.Join(t.TempDir(), "values")
	for name, p := range map[string]checkpoint.Part{
		"tensor": checkpoint.Value("v", &x), "layer": checkpoint.Value("v", layer), "optimizer": checkpoint.Value("v", opt),
		"generator": checkpoint.Value("v", &generator), "holder": checkpoint.Value("v", &held), "map": checkpoint.Value("v", &values),
		"state": checkpoint.Value("v", &state), "hidden": checkpoint.Value("v", &secret),
	} {
		if name == "state" && len(state.State) == 0 {
			continue // numbers alone
		}
		if err := checkpoint.SaveValues(path, p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	dtype, none, empty := tensor.BFloat16, (*tensor.Tensor)(nil), struct{ Settings struct{} }{}
	if err := checkpoint.SaveValues(path, checkpoint.Value("dtype", &dtype), checkpoint.Value("none", &none), checkpoint.Value("empty", &empty)); err != nil {
		t.Fatal(err)
	}
	dtype = tensor.Float32
	if err := checkpoint.LoadValues(path, checkpoint.Value("dtype", &dtype)); err != nil || dtype != tensor.BFloat16 {
		t.Errorf("%v, %v", dtype, err)
	}
}

type ring struct{ A, B *ring }

func (ring) MarshalText() ([]byte, error)  { return []byte("a ring"), nil }
func (*ring) UnmarshalText(b []byte) error { return nil }

// A type that stores itself may hold what Value does not store, also itself.
func TestValuesThatStoreThemselves(t *testing.T) {
	leak.Check(t)
	r := &ring{}
	r.A, r.B = r, r
	if got, err := again(t, "ring", map[string]*ring{"r": r}); err != nil || got["r"] == nil {
		t.Errorf("%v, %v", got, err)
	}
}

// A load changes the fields of a struct that are stored, and no others.
func TestLoadKeepsFieldsThatAreNotStored(t *testing.T) {
	leak.Check(t)
	type nested struct {
		N    int
		name string
	}
	type run struct {
		starts
		mu     sync.Mutex
		Nested nested
		When   time.Time
		Log    func() `json:"-"`
		Losses []float64
	}
	path := filepath.Join(t.TempDir(), "values")
	saved := &run{starts: starts{1, 2}, Nested: nested{3, "saved"}, When: time.Unix(5, 0).UTC()}
	if err := checkpoint.SaveValues(path, checkpoint.Value("run", saved)); err != nil {
		t.Fatal(err)
	}
	loaded := &run{Nested: nested{0, "loaded"}, Log: func() {}, Losses: []float64{1}}
	loaded.mu.Lock()
	if err := checkpoint.LoadValues(path, checkpoint.Value("run", loaded)); err != nil {
		t.Fatal(err)
	}
	if loaded.mu.TryLock() || loaded.Log == nil || loaded.Nested.name != "loaded" {
		t.Error("fields that are not stored have changed")
	}
	if loaded.starts != saved.starts || loaded.Nested.N != 3 || !loaded.When.Equal(saved.When) || loaded.Losses != nil {
		t.Errorf("the fields that are stored are %v, %v, %v, %v", loaded.starts, loaded.Nested, loaded.When, loaded.Losses)
	}
	type points struct {
		*starts
		N int
	}
	comesBack(t, points{nil, 2})
	if err := checkpoint.SaveValues(path, value(points{nil, 2})); err != nil {
		t.Fatal(err)
	}
	old := points{&starts{1, 2}, 3}
	if err := checkpoint.LoadValues(path, checkpoint.Value("v", &old)); err != nil || old != (points{nil, 2}) {
		t.Errorf("an embedded pointer that was nil is loaded as %v, %v", old, err)
	}
	if _, err := again(t, "v", points{&starts{1, 2}, 3}); err == nil || !strings.Contains(err.Error(), "could not be read again") {
		t.Errorf("an embedded pointer that a load could not set: %v", err)
	}
}

// Fields with the tag "-" may hold what Value does not store; a struct that has only such fields is an error.
func TestFieldsThatAreNotStored(t *testing.T) {
	leak.Check(t)
	x := tensor.Ones([]int{1})
	defer x.Release()
	type settings struct {
		Step int
		X    *tensor.Tensor `json:"-"`
		Y    any            `cbor:"-" json:"y"`
	}
	if got, err := again(t, "v", settings{1, x, x}); err != nil || got != (settings{Step: 1}) {
		t.Errorf("%v, %v", got, err)
	}
	type noted struct {
		netip.Addr
		Note string `json:"-"`
	}
	address := netip.MustParseAddr("192.0.2.1")
	if got, err := again(t, "v", noted{address, "n"}); err != nil || got.Addr != address {
		t.Errorf("%v, %v", got, err)
	}
	type steps int
	path := filepath.Join(t.TempDir(), "values")
	for _, part := range []checkpoint.Part{value(struct {
		Step int `json:"-"`
	}{1}), value(struct{ steps }{1})} {
		if err := checkpoint.SaveValues(path, part); err == nil || !strings.Contains(err.Error(), "has no fields that are stored") {
			t.Errorf("a struct without fields that are stored: %v", err)
		}
	}
}
