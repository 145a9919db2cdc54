package tensor

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
)

// schemaTargets returns the table's operators as targets for Call, with arguments made from their schemas. They reach
// arguments that typed methods leave at their defaults, and types of values that a method's parameters cannot have. The
// hostile test and FuzzCall use them.
func schemaTargets(t testing.TB) []hostileTarget {
	var all []hostileTarget
	seen := map[string]bool{}
	for _, o := range operators {
		name := o.op.name
		if o.op.overload != "" {
			name += "." + o.op.overload
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		text, err := Schema(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, hostileTarget{name: "Call " + name, fn: reflect.ValueOf(Call), schema: schemaTypes(text)})
	}
	return all
}

// schemaTypes returns the types of a schema's arguments: Tensor, int[2] and Scalar? for "aten::f(Tensor self, int[2]
// k=1, *, Scalar? s=None) -> Tensor".
func schemaTypes(schema string) []string {
	types := []string{}
	depth, start := 0, strings.IndexByte(schema, '(')+1
	for i := start; i < len(schema); i++ {
		switch c := schema[i]; {
		case depth == 0 && (c == ',' || c == ')'):
			if word, _, _ := strings.Cut(strings.TrimSpace(schema[start:i]), " "); word != "" && word != "*" {
				types = append(types, word)
			}
			if c == ')' {
				return types
			}
			start = i + 1
		case c == '(' || c == '[':
			depth++
		case c == ')' || c == ']':
			depth--
		}
	}
	return types
}

func TestSchemaTypes(t *testing.T) {
	begin(t)
	got := schemaTypes("aten::f(Tensor(a!) self, Tensor?[] i, int[2] k=[1, 2], *, Scalar? s=None, str m='x') -> (Tensor(a!), int)")
	if want := []string{"Tensor(a!)", "Tensor?[]", "int[2]", "Scalar?", "str"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := schemaTypes("aten::g() -> Tensor"); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// bySchema makes the arguments of a call: mostly of the schema's types, from few tensors, so that their shapes often
// fit.
func (h *hostile) bySchema(target *hostileTarget) []reflect.Value {
	name := strings.TrimPrefix(target.name, "Call ")
	few := []*Tensor{h.good(), h.good(), h.tensor()}
	if h.one(3) {
		few[1], few[2] = few[0], few[0]
	}
	op, _, _ := strings.Cut(name, ".")
	writes := strings.HasSuffix(op, "_")
	args := []any{}
	for i, typ := range target.schema {
		v := h.ofType(typ, few)
		if writes {
			// An operator must not write into a tensor of the graph that it extends (see call).
			switch x := v.(type) {
			case *Tensor:
				if x != nil && i > 0 && x.DType() != Invalid {
					v = x.Detach().Clone()
				}
			case []*Tensor:
				for k := range x {
					x[k] = x[k].Detach().Clone()
				}
			}
		}
		args = append(args, v)
	}
	switch {
	case h.one(30):
		args = append(args, h.any())
	case len(args) > 0 && h.one(30):
		args = args[:h.rng.IntN(len(args))]
	}
	return []reflect.Value{reflect.ValueOf(name), reflect.ValueOf(args)}
}

func (h *hostile) ofType(typ string, few []*Tensor) any {
	if h.one(40) {
		return h.any()
	}
	if h.one(8) {
		return Default
	}
	if strings.HasSuffix(typ, "?") && h.one(3) {
		return nil
	}
	list := strings.Contains(typ, "[")
	kind := strings.TrimRight(typ, "?")
	kind, _, _ = strings.Cut(kind, "[")
	kind, _, _ = strings.Cut(strings.TrimRight(kind, "?"), "(")
	if list {
		n := h.rng.IntN(5)
		switch kind {
		case "Tensor":
			ts := make([]*Tensor, n)
			for i := range ts {
				ts[i] = pick(h, few...)
			}
			return ts
		case "int", "SymInt":
			return h.ints()
		case "float", "Scalar":
			fs := make([]float64, n)
			for i := range fs {
				fs[i] = h.float()
			}
			return fs
		case "bool":
			bs := make([]bool, n)
			for i := range bs {
				bs[i] = h.one(2)
			}
			return bs
		}
		return h.any()
	}
	switch kind {
	case "Tensor":
		return pick(h, few...)
	case "int", "SymInt":
		return h.int()
	case "float":
		return h.float()
	case "bool":
		return h.one(2)
	case "Scalar":
		return pick[any](h, h.int(), h.float(), h.one(2), complex(h.float(), h.float()))
	case "str":
		return h.str()
	case "ScalarType":
		return pick[any](h, h.dtype(), h.dtype(), h.int())
	case "Device":
		return h.device()
	case "Layout", "MemoryFormat":
		return h.int()
	}
	return h.any()
}

// byteSource is a source of random numbers that begins with given ones. It never ends, because callers that draw until
// a number fits would loop forever.
type byteSource struct {
	told []byte
	rest *rand.PCG
}

func (b *byteSource) Uint64() uint64 {
	if len(b.told) < 2 {
		return b.rest.Uint64()
	}
	n := uint64(binary.LittleEndian.Uint16(b.told))
	b.told = b.told[2:]
	// IntN uses the upper bits.
	return n * 0x0001_0001_0001_0001
}

// FuzzCall calls operators by name with arguments derived from the fuzzer's bytes. A crash in C++ ends the process and
// leaves the input in testdata.
func FuzzCall(f *testing.F) {
	begin(f)
	targets := schemaTargets(f)
	for i := range 200 {
		seed := rand.New(rand.NewPCG(1, uint64(i)))
		b := make([]byte, 64)
		for k := range b {
			b[k] = byte(seed.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = WithScope(func() error {
			source := byteSource{b, rand.NewPCG(1, 2)}
			h := &hostile{rng: rand.New(&source), slot: make([]byte, hostileSlot)}
			h.refill()
			defer func() { h.pool = nil }()
			if err := h.call(&targets[h.rng.IntN(len(targets))]); err != nil && err.Error() == "" {
				t.Error("an empty error")
			}
			if h.failed != "" {
				t.Error(h.failed)
			}
			if os.Getenv("LINSTOCK_HOSTILE_TRACE") != "" {
				t.Log(h.text)
			}
			return nil
		})
	})
}
