// Linstockvet reports misuse of Linstock's lifetimes: docs/vet.md. It works by itself and as go vet's tool:
//
//	linstockvet ./...
//	go vet -vettool=$(which linstockvet) ./...
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/linstock-ml/linstock/vet"
)

func main() { multichecker.Main(vet.Analyzers()...) }
