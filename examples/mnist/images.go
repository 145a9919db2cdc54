package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// fashionDir is the directory of Debian's package dataset-fashion-mnist.
const fashionDir = "/usr/share/datasets/fashion-mnist"

var (
	//go:embed digits/images.idx3.gz
	digitImages []byte
	//go:embed digits/labels.idx1.gz
	digitLabels []byte
)

// images holds pictures, one byte per pixel from 0 (black) to 255 (white), and their classes.
type images struct {
	height, width int
	white         byte
	pixels        []byte
	labels        []byte
}

func (m *images) Len() int { return len(m.labels) }

// sample writes the i-th picture, scaled to [0, 1], and its class.
func (m *images) sample(i int, pixels []float32, class []int64) error {
	at := i * m.height * m.width
	for k, p := range m.pixels[at : at+len(pixels)] {
		pixels[k] = float32(p) / float32(m.white)
	}
	class[0] = int64(m.labels[i])
	return nil
}

// readData reads Fashion-MNIST from dir, or the digits if dir is empty or does not exist.
func readData(dir string) (train, test *images, name string, err error) {
	if _, missing := os.Stat(dir); dir == "" || dir == fashionDir && missing != nil {
		train, test, err = readDigits()
		return train, test, "handwritten digits", err
	}
	if train, err = readFiles(dir, "train"); err != nil {
		return nil, nil, "", err
	}
	test, err = readFiles(dir, "t10k")
	return train, test, "Fashion-MNIST", err
}

func readFiles(dir, part string) (*images, error) {
	pixels, err := os.ReadFile(filepath.Join(dir, part+"-images-idx3-ubyte.gz"))
	if err != nil {
		return nil, err
	}
	labels, err := os.ReadFile(filepath.Join(dir, part+"-labels-idx1-ubyte.gz"))
	if err != nil {
		return nil, err
	}
	return newImages(pixels, labels, 255)
}

// readDigits uses the last fifth, which other people wrote, as the test set.
func readDigits() (train, test *images, err error) {
	all, err := newImages(digitImages, digitLabels, 16)
	if err != nil {
		return nil, nil, err
	}
	n := all.Len() * 4 / 5
	cut := n * all.height * all.width
	train, test = new(*all), new(*all)
	train.pixels, train.labels = all.pixels[:cut], all.labels[:n]
	test.pixels, test.labels = all.pixels[cut:], all.labels[n:]
	return train, test, nil
}

func newImages(pixelFile, labelFile []byte, white byte) (*images, error) {
	dims, pixels, err := readIDX(pixelFile)
	if err != nil {
		return nil, err
	}
	of, labels, err := readIDX(labelFile)
	if err != nil {
		return nil, err
	}
	if len(dims) != 3 || len(of) != 1 || dims[0] != of[0] {
		return nil, fmt.Errorf("images of shape %v have labels of shape %v", dims, of)
	}
	return &images{height: dims[1], width: dims[2], white: white, pixels: pixels, labels: labels}, nil
}

// readIDX reads MNIST's format: a word with the number of dimensions, the dimensions, and bytes.
func readIDX(file []byte) (dims []int, data []byte, err error) {
	zipped, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		return nil, nil, err
	}
	r := bufio.NewReader(zipped)
	var magic uint32
	if err := binary.Read(r, binary.BigEndian, &magic); err != nil {
		return nil, nil, err
	}
	if magic>>8 != 8 { // 8 means bytes
		return nil, nil, errors.New("not an IDX file of bytes")
	}
	n := 1
	for range magic & 0xff {
		var d uint32
		if err := binary.Read(r, binary.BigEndian, &d); err != nil {
			return nil, nil, err
		}
		dims, n = append(dims, int(d)), n*int(d)
	}
	data, err = io.ReadAll(r)
	if err == nil && len(data) != n {
		err = fmt.Errorf("an IDX file of shape %v has %d bytes", dims, len(data))
	}
	return dims, data, err
}
