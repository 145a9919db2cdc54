// Command hello is a minimal program that computes. Tests run it where libtorch is missing, where it was just set up,
// and out of a bundle.
package main

import (
	"fmt"
	"os"

	"github.com/linstock-ml/linstock/tensor"
)

func main() {
	sum, err := tensor.Ones([]int{2, 3}).MatMul(tensor.Ones([]int{3, 4})).Sum().Item()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("sum:", sum)
}
