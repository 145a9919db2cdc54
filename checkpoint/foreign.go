package checkpoint

import (
	"bytes"
	"encoding/binary"
	"os"
)

// magics are the formats that begin with fixed bytes.
var magics = []struct{ begins, what string }{
	{"\x80\x02", "it is a Python pickle; " + convert},
	{"\x80\x03", "it is a Python pickle; " + convert},
	{"\x80\x04", "it is a Python pickle; " + convert},
	{"\x80\x05", "it is a Python pickle; " + convert},
	{"GGUF", "it is a GGUF file, llama.cpp's format; load the safetensors files that it was made from"},
	{"\x89HDF\r\n\x1a\n", "it is an HDF5 file, Keras's format; read it in Python (h5py) and write it with safetensors.numpy.save_file"},
	{"\x1f\x8b", "it is compressed with gzip; decompress it first"},
	{"\x28\xb5\x2f\xfd", "it is compressed with zstd; decompress it first"},
	{"\xfd7zXZ\x00", "it is compressed with xz; decompress it first"},
	{"BZh", "it is compressed with bzip2; decompress it first"},
	{"version https://git-lfs", "it is a Git LFS pointer, not the file that it stands for; run: git lfs pull"},
}

const convert = "in Python, load it with pickle and save what it holds with torch.save, arrays as tensors (torch.from_numpy)"

// foreign returns a description of the other format that f is in and how to convert it, or "" if it begins as a
// safetensors file does. It reads the first 4 KiB of the file.
func foreign(f *os.File) string {
	head := make([]byte, 4<<10)
	n, _ := f.ReadAt(head, 0)
	head = head[:n]
	if likeSafetensors(head) {
		return ""
	}
	for _, m := range magics {
		if bytes.HasPrefix(head, []byte(m.begins)) {
			return m.what
		}
	}
	text := bytes.ToLower(bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n"))
	switch {
	case bytes.HasPrefix(text, []byte("<!doctype html")), bytes.HasPrefix(text, []byte("<html")), bytes.HasPrefix(text, []byte("<head")):
		return "it is a web page (HTML), perhaps the page of the file rather than the file; download it again"
	case bytes.HasPrefix(text, []byte("{")):
		return "it is JSON text"
	case len(head) == 0:
		return "it is empty"
	}
	return "its format is not recognised; Load reads safetensors, what torch.save writes (.pt, .pth, .bin), NumPy's .npy and .npz, and indexes of shards"
}

// likeSafetensors reports whether a file begins as a safetensors file does. It may be damaged, and the length of its header
// may look like another format.
func likeSafetensors(head []byte) bool {
	return len(head) > 8 && head[8] == '{' && binary.LittleEndian.Uint64(head) <= maxHeader
}
