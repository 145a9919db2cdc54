// Package digits holds 1,797 images of handwritten digits and reads MNIST's files.
package digits

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

var (
	//go:embed images.idx3.gz
	imageFile []byte
	//go:embed labels.idx1.gz
	labelFile []byte
)

// Images holds pictures, one byte per pixel from 0 (black) to White, and their classes.
type Images struct {
	Height, Width int
	White         byte
	Pixels        []byte
	Labels        []byte
}

// Len returns the number of pictures.
func (m *Images) Len() int { return len(m.Labels) }

// Sample writes the i-th picture, scaled to [0, 1], and its class.
func (m *Images) Sample(i int, pixels []float32, class []int64) error {
	at := i * m.Height * m.Width
	for k, p := range m.Pixels[at : at+len(pixels)] {
		pixels[k] = float32(p) / float32(m.White)
	}
	class[0] = int64(m.Labels[i])
	return nil
}

// Read returns the digits of this directory, 8 by 8 pixels.
func Read() (*Images, error) { return New(imageFile, labelFile, 16) }

// New reads images and labels in MNIST's format, compressed with gzip.
func New(imageFile, labelFile []byte, white byte) (*Images, error) {
	dims, pixels, err := readIDX(imageFile)
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
	return &Images{Height: dims[1], Width: dims[2], White: white, Pixels: pixels, Labels: labels}, nil
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
