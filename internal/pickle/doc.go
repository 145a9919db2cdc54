// Package pickle reads and writes the part of Python's pickle format that PyTorch's files consist of.
//
// A pickle is a program for a stack machine. Read executes it without calling anything: what a pickle refers to by
// name is a Class, and the caller's functions decide what becomes of each. The values take at most 64 times the bytes that were
// read, and 4 MiB, whatever the pickle contains.
package pickle
