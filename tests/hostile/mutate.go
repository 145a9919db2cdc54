package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

type kind uint8

const (
	plain kind = iota
	training
	object // of torch.save or NumPy
)

// seedFile is a file from which mutants are made, with its header split into tokens.
type seedFile struct {
	kind   kind
	bytes  []byte
	tokens []string // of the header; joined they are the header
	data   []byte
}

type mutant struct {
	n     int64
	kind  kind
	how   string
	bytes []byte
}

// mutators makes mutants. A mutant is valid until the next one is made.
type mutators struct {
	seeds   []seedFile
	objects []objectSeed
	rng     *rand.Rand
	pcg     *rand.PCG
	buf     []byte
	toks    []string
	head    []byte
}

func newMutators(dir, format string) (*mutators, error) {
	m := &mutators{pcg: rand.NewPCG(0, 0)}
	m.rng = rand.New(m.pcg)
	if format == objectFormat {
		return m, m.readObjectSeeds(dir)
	}
	for _, name := range []string{"plain", "small", "model", "training"} {
		b, err := os.ReadFile(filepath.Join(dir, name+".seed"))
		if err != nil {
			return nil, err
		}
		n := binary.LittleEndian.Uint64(b)
		s := seedFile{bytes: b, tokens: tokens(string(b[8 : 8+n])), data: b[8+n:]}
		if name == "training" {
			s.kind = training
		}
		m.seeds = append(m.seeds, s)
	}
	return m, nil
}

// tokens splits JSON into strings, numbers, words and single characters.
func tokens(text string) []string {
	var all []string
	for at := 0; at < len(text); {
		end := at + 1
		switch c := text[at]; {
		case c == '"':
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			end++
		case c >= '0' && c <= '9' || c >= 'a' && c <= 'z':
			for end < len(text) && strings.IndexByte("0123456789abcdefghijklmnopqrstuvwxyz.", text[end]) >= 0 {
				end++
			}
		case c == ' ':
			for end < len(text) && text[end] == ' ' {
				end++
			}
		}
		end = min(end, len(text))
		all = append(all, text[at:end])
		at = end
	}
	return all
}

func (m *mutators) one(n int) bool { return m.rng.IntN(n) == 0 }

func pick[T any](m *mutators, list ...T) T { return list[m.rng.IntN(len(list))] }

// mutant makes the n-th mutant of a seed.
func (m *mutators) mutant(seed uint64, n int64) mutant {
	if m.objects != nil {
		return m.object(seed, n)
	}
	m.pcg.Seed(seed, uint64(n))
	s := &m.seeds[m.rng.IntN(3)]
	if m.one(12) {
		s = &m.seeds[3]
	}
	r := mutant{n: n, kind: s.kind}
	m.buf = m.buf[:0]
	switch m.rng.IntN(10) {
	case 0, 1:
		r.how = "bytes"
		m.buf = append(m.buf, s.bytes...)
		m.flip()
	case 2:
		r.how = "header size"
		m.buf = append(m.buf, s.bytes...)
		size := binary.LittleEndian.Uint64(m.buf)
		size = pick(m, 0, 1, 2, size-1, size+1, size-8, size+uint64(len(s.data)), size+uint64(len(s.data))+1, 1<<63, 1<<64-1, 100_000_000, 100_000_001, m.rng.Uint64(), m.rng.Uint64()%uint64(len(m.buf)))
		binary.LittleEndian.PutUint64(m.buf, size)
	case 3:
		r.how = "cut, or longer"
		m.buf = append(m.buf, s.bytes...)
		if m.one(2) {
			m.buf = m.buf[:m.rng.IntN(len(m.buf)+1)]
		} else {
			m.buf = append(m.buf, make([]byte, m.rng.IntN(100))...)
		}
	case 4, 5, 6:
		r.how = "tokens"
		m.toks = append(m.toks[:0], s.tokens...)
		for range 1 + m.rng.IntN(3) {
			m.token()
		}
		m.head = m.head[:0]
		for _, t := range m.toks {
			m.head = append(m.head, t...)
		}
		m.join(m.head, s.data)
		if m.one(20) {
			m.flip()
		}
	case 7:
		r.how = "another's data"
		m.join([]byte(strings.Join(s.tokens, "")), m.seeds[m.rng.IntN(len(m.seeds))].data)
	default:
		r.how, r.kind = "made", plain
		m.make()
	}
	r.bytes = m.buf
	return r
}

// join makes a file of a header and data, sometimes with a wrong size.
func (m *mutators) join(head, data []byte) {
	size := uint64(len(head))
	if m.one(30) {
		size += uint64(m.rng.IntN(9)) - 4
	}
	m.buf = binary.LittleEndian.AppendUint64(m.buf[:0], size)
	m.buf = append(m.buf, head...)
	m.buf = append(m.buf, data...)
}

func (m *mutators) flip() {
	if len(m.buf) == 0 {
		return
	}
	for range 1 + m.rng.IntN(4) {
		// Change mostly the header, because data is not checked.
		at := m.rng.IntN(len(m.buf))
		if !m.one(4) {
			at = m.rng.IntN(min(len(m.buf), 600))
		}
		switch m.rng.IntN(4) {
		case 0:
			m.buf[at] ^= 1 << m.rng.IntN(8)
		case 1:
			m.buf[at] = byte(m.rng.IntN(256))
		case 2:
			m.buf[at] = pick[byte](m, '"', '{', '}', '[', ']', ',', ':', '\\', '0', '9', '-', 0, ' ', 0xff, 0x80)
		default:
			m.buf = append(m.buf[:at], m.buf[min(len(m.buf), at+1+m.rng.IntN(8)):]...)
			if len(m.buf) == 0 {
				return
			}
		}
	}
}

var numbers = []string{
	"0", "1", "2", "3", "4", "6", "8", "12", "16", "24", "-1", "00", "01", "1.5", "2e0", "1e400", "4294967296", "2147483647", "4294967295", "9223372036854775807",
	"9223372036854775808", "18446744073709551615", "18446744073709551616", "1152921504606846975", "2305843009213693952", "99999999999999999999999999999", "null", "true",
	"NaN", "-0", "0x10", "\"2\"", "[]", "{}", "[2]", "+1", "1_0", "٣",
}

var words = []string{
	`"F32"`, `"F64"`, `"F16"`, `"BF16"`, `"I64"`, `"I8"`, `"U8"`, `"BOOL"`, `"C64"`, `"F4"`, `"F8_E5M2"`, `"F8_E8M0"`, `"U64"`, `"F6_E2M3"`, `"f32"`, `"dtype"`, `"shape"`,
	`"data_offsets"`, `"__metadata__"`, `"linstock"`, `"x"`, `"weight"`, `"model.weight"`, `"rng.cpu"`, `"optimizer.state.0.exp_avg"`, `"state.0.step"`, `""`, `"\u0000"`, `"\ud800"`,
	`"\ud83d\ude00"`, `"\u00e4"`, `"\x"`, `"\u12"`, `"\"`, `"`, "\"\xff\xfe\"", "\"\xc3\xa4\"", "\"\x00\"", "\"\xed\xa0\x80\"", "\"\n\"", `"\\\""`, "'x'", `"\u0078"`,
	`"{\"format\":1,\"optimizer\":{},\"parts\":{}}"`, `"{\"format\":1,\"optimizer\":{\"group.0.params\":2,\"group.0.lr\":1e308},\"parts\":{\"value.step\":1e99}}"`,
	`"{\"format\":1,\"optimizer\":null,\"parts\":{\"value.step\":[[[[1]]]]}}"`, `"{"`, `"{\"format\":9223372036854775808}"`, "/*", "\t", "\ufeff",
}

// long returns long repetitions and nested values.
func (m *mutators) long() string {
	n := m.rng.IntN(200)
	if m.one(300) {
		n = 20_000
	}
	return strings.Repeat(pick(m, "[", "{", `{"a":`, "1,", "0,", `\u0041`, "9", " ", `"a":{},`, "\\", `"data_offsets"`, "ä", `"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},`), n)
}

// token changes one place of the header.
func (m *mutators) token() {
	if len(m.toks) == 0 {
		return
	}
	at := m.rng.IntN(len(m.toks))
	switch m.rng.IntN(10) {
	case 0:
		m.toks = append(m.toks[:at], m.toks[at+1:]...)
	case 1:
		m.toks[at] += m.toks[at]
	case 2:
		other := m.rng.IntN(len(m.toks))
		m.toks[at], m.toks[other] = m.toks[other], m.toks[at]
	case 3:
		m.toks[at] = m.toks[m.rng.IntN(len(m.toks))]
	case 4:
		// Repeat a run of tokens, for example a tensor.
		end := min(len(m.toks), at+1+m.rng.IntN(40))
		m.toks[end-1] += strings.Join(m.toks[at:end], "")
	case 5:
		m.toks[at] = m.long()
	default:
		// Use another token of the same kind.
		for range 50 {
			at = m.rng.IntN(len(m.toks))
			if c := m.toks[at]; c != "" && (c[0] >= '0' && c[0] <= '9') {
				if m.one(3) {
					m.toks[at] = fmt.Sprint(m.rng.IntN(70))
				} else {
					m.toks[at] = pick(m, numbers...)
				}
				return
			} else if c != "" && c[0] == '"' && m.one(3) {
				m.toks[at] = pick(m, words...)
				return
			}
		}
	}
}

var sizes = map[string]int{"F64": 8, "I64": 8, "C64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1, "I8": 1, "F8_E4M3": 1, "U16": 2}
var names = []string{"F64", "I64", "C64", "F32", "I32", "F16", "BF16", "U8", "BOOL", "I8", "F8_E4M3", "U16"}

// make makes a file from nothing: consecutive tensors, in any order in the header, and often with one fault.
func (m *mutators) make() {
	type entry struct {
		name, dtype string
		shape       []string
		begin, end  int
	}
	entries := make([]entry, m.rng.IntN(7))
	at := 0
	for i := range entries {
		e := &entries[i]
		e.name, e.dtype = fmt.Sprintf("%q", string(rune('a'+i))), pick(m, names...)
		n := sizes[e.dtype]
		for range m.rng.IntN(5) {
			d := m.rng.IntN(5)
			e.shape = append(e.shape, fmt.Sprint(d))
			n *= d
		}
		if m.one(100) {
			e.shape = strings.Split(strings.Repeat("1", 60+m.rng.IntN(10)), "")
			n = sizes[e.dtype]
		}
		e.begin, e.end = at, at+n
		at += n
	}
	size := at
	if len(entries) > 0 && !m.one(3) {
		e, other := &entries[m.rng.IntN(len(entries))], &entries[m.rng.IntN(len(entries))]
		switch m.rng.IntN(12) {
		case 0:
			e.begin, e.end, other.begin, other.end = other.begin, other.end, e.begin, e.end
		case 1:
			e.begin += m.rng.IntN(5) - 2
		case 2:
			e.end += m.rng.IntN(5) - 2
		case 3:
			e.begin, e.end = e.end, e.begin
		case 4:
			e.dtype = pick(m, append(names, "F4", "F6_E3M2", "X", "")...)
		case 5:
			e.name = other.name
		case 6:
			e.name = pick(m, words...)
		case 7:
			e.shape = append(e.shape, pick(m, numbers...))
		case 8:
			// Products that overflow to the correct value.
			e.shape = append(e.shape, "4294967296", "4294967296")
		case 9:
			e.begin, e.end = other.begin, other.end
		case 10:
			size += m.rng.IntN(33) - 16
		default:
			e.shape = append(e.shape, "0", pick(m, numbers...))
			e.end = e.begin
		}
	}
	m.rng.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	head := bytes.NewBuffer(m.head[:0])
	head.WriteByte('{')
	if m.one(4) {
		fmt.Fprintf(head, `"__metadata__":{"k":%s}`, pick(m, `"v"`, `"v","k":"w"`, "1", "null", `"\u00e4"`, "{}"))
		if len(entries) > 0 {
			head.WriteByte(',')
		}
	}
	for i, e := range entries {
		if i > 0 {
			head.WriteByte(',')
		}
		fmt.Fprintf(head, `%s:{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}`, e.name, e.dtype, strings.Join(e.shape, ","), e.begin, e.end)
	}
	head.WriteByte('}')
	for m.one(2) {
		head.WriteByte(' ')
	}
	m.head = head.Bytes()
	m.join(m.head, nil)
	for range max(0, size) {
		m.buf = append(m.buf, byte(m.rng.IntN(3)/2))
	}
}
