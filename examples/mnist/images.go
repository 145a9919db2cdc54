package main

import (
	"os"
	"path/filepath"

	"github.com/linstock-ml/linstock/examples/mnist/digits"
)

// fashionDir is the directory of Debian's package dataset-fashion-mnist.
const fashionDir = "/usr/share/datasets/fashion-mnist"

// readData reads Fashion-MNIST from dir, or the digits if dir is empty or does not exist.
func readData(dir string) (train, test *digits.Images, name string, err error) {
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

func readFiles(dir, part string) (*digits.Images, error) {
	pixels, err := os.ReadFile(filepath.Join(dir, part+"-images-idx3-ubyte.gz"))
	if err != nil {
		return nil, err
	}
	labels, err := os.ReadFile(filepath.Join(dir, part+"-labels-idx1-ubyte.gz"))
	if err != nil {
		return nil, err
	}
	return digits.New(pixels, labels, 255)
}

// readDigits uses the last fifth, which other people wrote, as the test set.
func readDigits() (train, test *digits.Images, err error) {
	all, err := digits.Read()
	if err != nil {
		return nil, nil, err
	}
	n := all.Len() * 4 / 5
	cut := n * all.Height * all.Width
	train, test = new(*all), new(*all)
	train.Pixels, train.Labels = all.Pixels[:cut], all.Labels[:n]
	test.Pixels, test.Labels = all.Pixels[cut:], all.Labels[n:]
	return train, test, nil
}
