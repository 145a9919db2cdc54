package checkpoint

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
)

// magics are the formats that begin with fixed bytes.
var magics = []struct{ begins, what string }{
	{"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", pickled},
	{"\x80\x02", "it is a Python pickle; " + convert},
	{"\x80\x03", "it is a Python pickle; " + convert},
	{"\x80\x04", "it is a Python pickle; " + convert},
	{"\x80\x05", "it is a Python pickle; " + convert},
	{"GGUF", "it is a GGUF file, llama.cpp's format; load the safetensors files that it was made from"},
	{"\x89HDF\r\n\x1a\n", "it is an HDF5 file, Keras's format; read it in Python (h5py) and write it with safetensors.numpy.save_file"},
	{"\x93NUMPY", "it is a NumPy array (.npy); in Python: safetensors.numpy.save_file({\"name\": numpy.load(path)}, \"model.safetensors\")"},
	{"\x1f\x8b", "it is compressed with gzip; decompress it first"},
	{"\x28\xb5\x2f\xfd", "it is compressed with zstd; decompress it first"},
	{"\xfd7zXZ\x00", "it is compressed with xz; decompress it first"},
	{"BZh", "it is compressed with bzip2; decompress it first"},
	{"version https://git-lfs", "it is a Git LFS pointer, not the file that it stands for; run: git lfs pull"},
}

const (
	convert = "convert it in Python: safetensors.torch.save_file(torch.load(path, weights_only=True), \"model.safetensors\")," +
		" where it holds a state dict"
	pickled = "it is a PyTorch file (torch.save); " + convert
)

// foreign returns a description of the other format that f is in and how to convert it, or "" if the format is
// unknown. It reads the first 4 KiB of the file, and the last 128 KiB of a zip archive.
func foreign(f *os.File) string {
	head := make([]byte, 4<<10)
	n, _ := f.ReadAt(head, 0)
	head = head[:n]
	if n > 8 && head[8] == '{' && binary.LittleEndian.Uint64(head) <= maxHeader {
		return "" // damaged safetensors, even if its length looks like another format
	}
	if bytes.HasPrefix(head, []byte("PK\x03\x04")) {
		return archive(f, head)
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
	case bytes.HasPrefix(text, []byte("{")) && bytes.Contains(text, []byte(`"weight_map"`)):
		return "it is an index of safetensors files (JSON); load the files that it lists"
	case bytes.HasPrefix(text, []byte("{")):
		return "it is JSON text"
	}
	return ""
}

// archive identifies the format of a zip archive by the names of its members, which are in front of each member
// and in the directory at the end of the file.
func archive(f *os.File, head []byte) string {
	var tail []byte
	if info, err := f.Stat(); err == nil {
		tail = make([]byte, min(128<<10, info.Size()))
		n, err := f.ReadAt(tail, info.Size()-int64(len(tail)))
		if err != nil && err != io.EOF {
			n = 0
		}
		tail = tail[:n]
	}
	has := func(name string) bool {
		return bytes.Contains(head, []byte(name)) || bytes.Contains(tail, []byte(name))
	}
	switch {
	case has("/constants.pkl"), has("/code/"):
		return "it is a TorchScript archive; in Python: safetensors.torch.save_file(torch.jit.load(path).state_dict(), \"model.safetensors\")"
	case has("data.pkl"):
		return pickled
	case has(".npy"):
		return "it is a NumPy archive (.npz); in Python: safetensors.numpy.save_file(dict(numpy.load(path)), \"model.safetensors\")"
	}
	return "it is a zip archive; unpack it first"
}
