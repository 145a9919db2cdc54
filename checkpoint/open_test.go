//go:build unix

package checkpoint_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// Only regular files are opened: opening a FIFO waits for a writer.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	makeFIFO(t, fifo)
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(fifo, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{fifo: "a named pipe (FIFO)", link: "a named pipe (FIFO)", socket: "a socket", os.DevNull: "a device", "/dev/zero": "a device", dir: "a directory"} {
		result := make(chan error, 1)
		go func() {
			_, err := checkpoint.Load(path)
			result <- err
		}()
		select {
		case err := <-result:
			if !errors.Is(err, checkpoint.ErrFormat) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v", want, err)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("Load of %s hangs", want)
		}
	}
	// Nor are others replaced. The devices are not written to here: if they were replaced, the machine would lose them.
	x := tensor.Ones([]int{2})
	defer x.Release()
	for path, want := range map[string]string{fifo: "a named pipe (FIFO)", link: "a named pipe (FIFO)", socket: "a socket", dir: "a directory"} {
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{
			"Save": checkpoint.Save(path, map[string]*tensor.Tensor{"x": x}, nil), "SavePyTorch": checkpoint.SavePyTorch(path, x),
			"SaveNPY": checkpoint.SaveNPY(path, x),
		} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s to %s: %v", name, want, err)
			}
		}
		if after, err := os.Lstat(path); err != nil || after.Mode() != before.Mode() {
			t.Errorf("saving to %s has changed it: %v, %v", want, after, err)
		}
	}
}

// A file of no known format is not taken for a damaged safetensors file.
func TestUnknownFormats(t *testing.T) {
	leak.Check(t)
	for want, text := range map[string]string{"not recognised; Load reads safetensors, ": "some text that is long enough", "is not recognised": strings.Repeat("\x00", 10240), "it is empty": ""} {
		if err := touchFile(t, text); !errors.Is(err, checkpoint.ErrFormat) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "header") {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// TestSavesFollowLinks tests that saving through a symbolic link replaces the file that it leads to.
func TestSavesFollowLinks(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "runs", "deep"), 0o777); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{
		"latest": "best", "best": filepath.Join("runs", "1"), "absolute": filepath.Join(dir, "runs", "2"), "loop": "loop",
		"last": filepath.Join("runs", "deep"), "runs/deep/up": "../3", "through": "last/../4", // last/.. is runs
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	// Each leads to a file that does not exist, and some a second time to one that does.
	for i, link := range []string{"latest", "latest", "absolute", "last/up", "last/up", "through", "last/../5"} {
		x := tensor.Full([]int{2}, i)
		if err := checkpoint.Save(dir+"/"+link, map[string]*tensor.Tensor{"x": x}, nil); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "runs", map[string]string{"latest": "1", "absolute": "2", "last/up": "3", "through": "4", "last/../5": "5"}[link])
		file, err := checkpoint.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		y := file.Tensor("x")
		if same, err := x.Equal(y); err != nil || !same {
			t.Errorf("%s: %v, %v", link, y, err)
		}
		x.Release()
		y.Release()
		if err := file.Close(); err != nil {
			t.Error(err)
		}
		if info, err := os.Lstat(dir + "/" + link); link != "last/../5" && (err != nil || info.Mode()&os.ModeSymlink == 0) {
			t.Errorf("%s is no longer a link: %v, %v", link, info, err)
		}
	}
	if err := checkpoint.Save(filepath.Join(dir, "loop"), nil, nil); err == nil {
		t.Error("saving through a link to itself succeeded")
	}
	x := tensor.Ones([]int{2})
	defer x.Release()
	if err := checkpoint.SaveSharded(dir+"/last/..", map[string]*tensor.Tensor{"x": x}, nil, 1<<20); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/runs/", "/last/../"} {
		file, err := checkpoint.Load(dir + path + "model.safetensors.index.json")
		if err != nil {
			t.Errorf("the index of SaveSharded in %s: %v", path, err)
			continue
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}

// If a file that is read instead of mapped is shortened while it is open, its tensors stay valid and further
// reads are an error.
func TestShortenedFilesThatAreRead(t *testing.T) {
	leak.Check(t)
	scoped(t, func() {
		path := filepath.Join(t.TempDir(), "x")
		all := same(t)
		all["big"] = tensor.Arange(0, 1_500_000, tensor.Int64) // read in several pieces
		if err := checkpoint.Save(path, all, remarks); err != nil {
			t.Fatal(err)
		}
		f, err := checkpoint.Load(path, checkpoint.Mapped(false))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if runtime.GOOS == "linux" && mapped(t, path) {
			t.Error("the file is mapped")
		}
		equal(t, f, all)
		big := f.Tensor("big")
		if err := os.Truncate(path, 9_000_000); err != nil {
			t.Fatal(err)
		}
		if ok, err := big.Mul_(2).Equal(all["big"].Mul(2)); err != nil || !ok {
			t.Errorf("a tensor of the file: equal %t, %v", ok, err)
		}
		for _, name := range []string{"big", "ramp.bool"} {
			if err := f.Tensor(name).Err(); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "shortened") {
				t.Errorf("%s of a shortened file: %v", name, err)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := f.Tensor("big").Err(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a closed file: %v", err)
		}
	})
}

func archiveOf(t *testing.T, names ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range names {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(make([]byte, 20_000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The files have the beginnings and members that other programs write.
func TestOtherFormatsAreNamed(t *testing.T) {
	leak.Check(t)
	filler := strings.Repeat("filler ", 100)
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"TorchScript": {archiveOf(t, "m/data.pkl", "m/code/__torch__/m.py", "m/constants.pkl"), []string{"TorchScript", "torch.jit.load"}},
		"pickle":      {"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}" + filler, []string{"Python pickle"}},
		"zip":         {archiveOf(t, "a.txt"), []string{"zip archive"}},
		"HTML":        {"\n<!DOCTYPE html>\n<html>" + filler, []string{"web page", "HTML"}},
		"html":        {"<html lang=en>" + filler, []string{"web page"}},
		"LFS":         {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n", []string{"Git LFS pointer", "git lfs pull"}},
		"gzip":        {"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + filler, []string{"gzip"}},
		"GGUF":        {"GGUF\x03\x00\x00\x00" + filler, []string{"GGUF"}},
		"HDF5":        {"\x89HDF\r\n\x1a\n" + filler, []string{"HDF5"}},
	} {
		path := filepath.Join(t.TempDir(), "model.pt")
		if err := os.WriteFile(path, []byte(c.text), 0o666); err != nil {
			t.Fatal(err)
		}
		_, err := checkpoint.Load(path)
		if !errors.Is(err, checkpoint.ErrFormat) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range append(c.want, path) {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v; want %q", name, err, w)
			}
		}
	}
	// Damaged safetensors files get their own error, even if their length looks like another format.
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte("\x1f\x8b\x00\x00\x00\x00\x00\x00{\"a\":"+strings.Repeat(" ", 0x8b1f)), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.Load(path); err == nil || strings.Contains(err.Error(), "gzip") {
		t.Errorf("damaged safetensors: %v", err)
	}
}
