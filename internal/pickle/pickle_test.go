package pickle

import (
	"bytes"
	"errors"
	"math/big"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

func read(text string) (any, error) {
	r := NewReader(strings.NewReader(text), int64(len(text)))
	r.Class = func(c Class) (any, error) { return c, nil }
	r.Reduce = func(f any, args Tuple) (any, error) { return Tuple{f, args}, nil }
	r.Build = func(v, state any) error { return nil }
	r.Persistent = func(id any) (any, error) { return id, nil }
	v, err := r.Read()
	if err == nil && r.Offset() != int64(len(text)) {
		err = errors.New("not read to its end")
	}
	return v, err
}

func TestRoundTrip(t *testing.T) {
	w := NewWriter()
	list := make([]any, 2500)
	for i := range list {
		list[i] = int64(i - 10)
	}
	big1, big2 := new(big.Int).Lsh(big.NewInt(3), 100), new(big.Int).Neg(new(big.Int).Lsh(big.NewInt(1), 71))
	w.Tuple(9, func(i int) {
		switch i {
		case 0:
			w.List(len(list), func(i int) { w.Int(list[i].(int64)) })
		case 1:
			w.Dict(2, func(i int) {
				w.Str([]string{"ä", "b"}[i])
				w.Str("ä")
			})
		case 2, 3:
			w.Class(Class{"m", "f"})
			if i == 3 {
				w.Tuple(0, nil)
				w.Op('R')
			}
		case 4:
			w.Float(-0.5)
		case 5:
			w.Bool(true)
		case 6:
			w.None()
		case 7:
			w.Big(big1)
		case 8:
			w.Big(big2)
		}
	})
	f := Class{"m", "f"}
	want := Tuple{&List{list}, &Dict{[]Item{{"ä", "ä"}, {"b", "ä"}}}, f, Tuple{f, Tuple{}}, -0.5, true, nil, big1, big2}
	got, err := read(string(w.Bytes()))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

// Values that Python's pickler writes in each protocol, and the same for protocols 3 to 5:
//
//	pickle.dumps(([1, -1, 300, 70000, 1 << 40, -(1 << 70), 0.5], ["x", "x"]), protocol)
//	pickle.dumps(([1, …, 0.5], {"a": (1, 2, 3, 4), "b": None, "c": True, 7: b"\x00\xff"}, set(), frozenset([1]), "ä"), protocol)
func TestPythonsPickles(t *testing.T) {
	for p, text := range []string{
		"((lp0\nI1\naI-1\naI300\naI70000\naL1099511627776L\naL-1180591620717411303424L\naF0.5\na(lp1\nVx\np2\nag2\natp3\n.",
		"(]q\x00(K\x01J\xff\xff\xff\xffM,\x01Jp\x11\x01\x00L1099511627776L\nL-1180591620717411303424L\nG?\xe0\x00\x00\x00\x00\x00\x00e]q\x01(X\x01\x00\x00\x00xq\x02h\x02etq\x03.",
		"\x80\x02]q\x00(K\x01J\xff\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xc0G?\xe0\x00\x00\x00\x00\x00\x00e]q\x01(X\x01\x00\x00\x00xq\x02h\x02e\x86q\x03.",
		"\x80\x03(]q\x00(K\x01J\xff\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xc0G?\xe0\x00\x00\x00\x00\x00\x00e}q\x01(X\x01\x00\x00\x00aq\x02(K\x01K\x02K\x03K\x04tq\x03X\x01\x00\x00\x00bq\x04NX\x01\x00\x00\x00cq\x05\x88K\x07C\x02\x00\xffq\x06ucbuiltins\nset\nq\x07]q\x08\x85q\x09Rq\ncbuiltins\nfrozenset\nq\x0b]q\x0cK\x01a\x85q\x0dRq\x0eX\x02\x00\x00\x00\xc3\xa4q\x0ftq\x10.",
		"\x80\x04\x95c\x00\x00\x00\x00\x00\x00\x00(]\x94(K\x01J\xff\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xc0G?\xe0\x00\x00\x00\x00\x00\x00e}\x94(\x8c\x01a\x94(K\x01K\x02K\x03K\x04t\x94\x8c\x01b\x94N\x8c\x01c\x94\x88K\x07C\x02\x00\xff\x94u\x8f\x94(K\x01\x91\x94\x8c\x02\xc3\xa4\x94t\x94.",
		"\x80\x05\x95c\x00\x00\x00\x00\x00\x00\x00(]\x94(K\x01J\xff\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xc0G?\xe0\x00\x00\x00\x00\x00\x00e}\x94(\x8c\x01a\x94(K\x01K\x02K\x03K\x04t\x94\x8c\x01b\x94N\x8c\x01c\x94\x88K\x07C\x02\x00\xff\x94u\x8f\x94(K\x01\x91\x94\x8c\x02\xc3\xa4\x94t\x94.",
	} {
		ints := &List{[]any{int64(1), int64(-1), int64(300), int64(70000), int64(1 << 40), new(big.Int).Neg(new(big.Int).Lsh(big.NewInt(1), 70)), 0.5}}
		want := Tuple{ints, &List{[]any{"x", "x"}}}
		if p > 2 {
			want = Tuple{ints, &Dict{[]Item{{"a", Tuple{int64(1), int64(2), int64(3), int64(4)}}, {"b", nil}, {"c", true}, {int64(7), Bytes("\x00\xff")}}},
				&Set{}, &Set{[]any{int64(1)}}, "ä"}
		}
		got, err := read(text)
		if p == 3 && err == nil { // protocol 3 makes sets by a call of their class
			got, want = got.(Tuple)[:2], want[:2]
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("protocol %d: %v, %v; want %v", p, got, err, want)
		}
	}
}

func TestHostilePickles(t *testing.T) {
	long := func(op string, n int, end string) string { return strings.Repeat(op, n) + end }
	for name, text := range map[string]string{
		"empty":                   "",
		"no value":                ".",
		"two values":              "NN.",
		"a mark is left":          "(N.",
		"no stop":                 "N",
		"2 GiB of text":           "X\xff\xff\xff\x7f",
		"2⁶³ bytes":               "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
		"2⁶⁴ bytes":               "\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
		"a number of 4 GiB":       "\x8b\xff\xff\xff\xff",
		"memo far away":           "Nr\xff\xff\xff\xff.",
		"nothing in the memo":     "h\x00.",
		"a gap of the memo":       "Nq\x020h\x01.",
		"no mark":                 "Nt.",
		"empty stack":             "0.",
		"below a mark":            "N(\x85.",
		"tuple of too few":        "N\x87.",
		"append to a tuple":       ")Na.",
		"set item of a list":      "]NNs.",
		"half an item":            "}(Nu.",
		"call without a tuple":    "cm\nf\nNR.",
		"protocol 6":              "\x80\x06N.",
		"unknown":                 "\xffN.",
		"extension":               "\x82\x01.",
		"persistent id as text":   "P1\n.",
		"not UTF-8":               "X\x01\x00\x00\x00\xff.",
		"a long line":             "I" + strings.Repeat("1", 5000) + "\n.",
		"not a number":            "Ix\n.",
		"escapes":                 "V\\u0041\n.",
		"class by numbers":        "K\x01K\x01\x93.",
		"a million lists":         long("]", 1_000_000, "."),
		"three million lists":     long("]", 3_000_000, "."),
		"valid: list of lists":    "]" + strings.Repeat("("+strings.Repeat("]", 1000)+"e", 1000) + ".",
		"a million marks":         long("(", 1_000_000, "."),
		"valid: a million tuples": ")" + long("\x85", 1_000_000, "."),
		"a million copies":        "N" + long("2", 1_000_000, "."),
		"valid: a million memos":  "N" + long("\x94", 1_000_000, "."),
		"valid: doubled tuples":   ")" + long("2\x86", 1_000_000, "."),
		"valid: a list in itself": "]q\x00" + long("h\x00a", 1_000_000, "."),
		"buffers":                 "\x97.",
	} {
		hostile := !strings.HasPrefix(name, "valid")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := read(text)
		runtime.ReadMemStats(&after)
		if hostile != errors.Is(err, ErrFormat) || hostile && len(err.Error()) > 300 {
			t.Errorf("%s: %v", name, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 100*uint64(len(text))+8<<20 {
			t.Errorf("%s: %d bytes allocated for %d", name, got, len(text))
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, text := range []string{"N.", "](K\x01K\x02e.", "}(X\x01\x00\x00\x00aG\x00\x00\x00\x00\x00\x00\x00\x00u.", "cm\nf\n)R}b.", "(I01\nL3L\nt.", "\x80\x04\x95\x01\x00\x00\x00\x00\x00\x00\x00\x8c\x01a\x94."} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b), int64(len(b)))
		r.Class = func(c Class) (any, error) { return c, nil }
		r.Reduce = func(f any, args Tuple) (any, error) { return args, nil }
		r.Build = func(v, state any) error { return nil }
		r.Persistent = func(id any) (any, error) { return id, nil }
		for {
			if _, err := r.Read(); err != nil {
				return
			}
		}
	})
}
