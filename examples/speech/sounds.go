package main

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"

	"github.com/linstock-ml/linstock/tensor"
)

const (
	rate      = 8000 // samples per second
	hop       = 128  // samples from one frame to the next; a frame has twice as many
	bands     = 32   // features per frame
	phones    = 3    // sounds of a digit
	shortest  = 2    // digits in an utterance
	longest   = 4
	maxFrames = longest * phones * 7 // a phone lasts 3 to 7 frames
)

// spoken has the phones of each digit: the first two formants in Hz, and the share of noise.
var spoken = [][phones][3]float32{
	{{250, 1700, 0.5}, {300, 2300, 0}, {450, 900, 0}},     // zero
	{{300, 600, 0}, {640, 1200, 0}, {250, 1100, 0.1}},     // one
	{{400, 1800, 0.9}, {300, 870, 0}, {300, 800, 0}},      // two
	{{300, 1400, 0.4}, {400, 1200, 0}, {300, 2300, 0}},    // three
	{{300, 1000, 0.6}, {570, 850, 0}, {450, 1250, 0}},     // four
	{{300, 1000, 0.6}, {640, 1200, 0}, {350, 2100, 0.2}},  // five
	{{300, 2000, 0.95}, {400, 2000, 0}, {300, 2000, 0.9}}, // six
	{{300, 2000, 0.95}, {550, 1850, 0}, {250, 1100, 0.1}}, // seven
	{{480, 2100, 0}, {300, 2300, 0}, {400, 1800, 0.8}},    // eight
	{{250, 1100, 0.1}, {600, 1600, 0}, {250, 1200, 0.1}},  // nine
}

// speech holds utterances.
type speech struct {
	sound   *tensor.Tensor // (N, samples), in about [-2, 2]
	targets *tensor.Tensor // (N, longest), int64: the digits plus 1
	frames  []int          // lengths of the utterances
	digits  []int          // numbers of digits
}

// speak makes n utterances of random digits, by speakers with different pitch, size and speed, in a noisy room.
func speak(n int) (s speech, err error) {
	const total = longest * phones
	count := tensor.RandInt(shortest, longest+1, []int{n, 1})
	said := tensor.RandInt(0, len(spoken), []int{n, longest})
	durations := tensor.RandInt(3, 8, []int{n, total}) // in frames
	durations = durations.Mul(tensor.Arange(0, total).View(1, -1).Lt(count.Mul(phones)).To(tensor.Int64))
	ends := durations.CumSum(1)
	throat := tensor.Rand([]int{n, 1}).Mul(0.3).Add(0.85)
	pitch := tensor.Rand([]int{n, 1}).Mul(120).Add(90) // Hz

	// The phone of each frame, and its formants and noise. The last frame has half its samples behind the utterance.
	at := tensor.Arange(0, maxFrames+1).View(1, -1, 1).Ge(ends.Unsqueeze(1)).Sum(tensor.Dim(2)).ClampMax(total - 1)
	rows := said.Mul(phones).Unsqueeze(2).Add(tensor.Arange(0, phones)).View(n, total).Gather(1, at)
	track := table().IndexSelect(0, rows.Flatten()).View(n, maxFrames+1, 3).RepeatInterleave(hop, tensor.Dim(1))
	loud := tensor.Arange(0, maxFrames+1).View(1, -1).Lt(ends.Narrow(1, total-1, 1)).RepeatInterleave(hop, tensor.Dim(1))

	hiss := track.Select(2, 2)
	voice := tone(track.Select(2, 0).Mul(throat)).Add(tone(track.Select(2, 1).Mul(throat)).Mul(0.5))
	voice = voice.Mul(tone(pitch.Expand(n, loud.Size(1))).Mul(0.4).Add(0.6)).Mul(hiss.Neg().Add(1))
	s.sound = voice.Add(tensor.Randn(hiss.Shape()).Mul(hiss).Mul(0.5)).Mul(loud).Add(tensor.Randn(hiss.Shape()).Mul(0.05))
	s.targets = said.Add(1)
	if s.frames, err = ints(ends.Select(1, total-1)); err != nil {
		return s, err
	}
	s.digits, err = ints(count.Flatten())
	return s, err
}

// table returns spoken as a tensor (phones of all digits, 3).
func table() *tensor.Tensor {
	var flat []float32
	for _, digit := range spoken {
		for _, p := range digit {
			flat = append(flat, p[:]...)
		}
	}
	return tensor.FromSlice(flat, []int{len(flat) / 3, 3})
}

// tone returns a sine of the given frequency in Hz at each sample.
func tone(frequency *tensor.Tensor) *tensor.Tensor {
	return frequency.Div(rate).CumSum(1).Mul(2 * math.Pi).Sin()
}

func ints(t *tensor.Tensor) ([]int, error) {
	long, err := tensor.Data[int64](t)
	out := make([]int, len(long))
	for i, v := range long {
		out[i] = int(v)
	}
	return out, err
}

// features returns the logarithm of the power in bands of 125 Hz: sound (N, samples) gives (N, T, bands).
func features(sound *tensor.Tensor) *tensor.Tensor {
	frames := sound.Unfold(1, 2*hop, hop).Mul(tensor.HannWindow(2 * hop))
	power := frames.FFTRFFT().Abs().Square().Narrow(2, 0, hop) // without the last of hop+1 frequencies
	mean := power.Reshape(power.Size(0), power.Size(1), bands, hop/bands).Mean(tensor.Dim(3))
	return mean.Add(0.1).Log().Sub(2).Div(3)
}

// saveWAV writes the first n frames of a sound (samples), 16 bits per sample.
func saveWAV(path string, sound *tensor.Tensor, n int) error {
	samples, err := tensor.Data[float32](sound)
	if err != nil {
		return err
	}
	samples = samples[:n*hop]
	var file bytes.Buffer
	file.WriteString("RIFF")
	put := func(values ...any) {
		for _, v := range values {
			_ = binary.Write(&file, binary.LittleEndian, v) // to memory
		}
	}
	size := uint32(2 * len(samples))
	put(36+size, []byte("WAVEfmt "), uint32(16), uint16(1), uint16(1), uint32(rate), uint32(2*rate), uint16(2), uint16(16))
	put([]byte("data"), size)
	for _, v := range samples {
		put(int16(max(-1, min(1, v/2)) * math.MaxInt16))
	}
	return os.WriteFile(path, file.Bytes(), 0o666)
}

// said returns the digits of each utterance.
func (s speech) said() ([][]int, error) {
	flat, err := ints(s.targets.Sub(1).Flatten())
	if err != nil {
		return nil, err
	}
	all := make([][]int, len(s.digits))
	for i, n := range s.digits {
		all[i] = flat[i*longest : i*longest+n]
	}
	return all, nil
}
