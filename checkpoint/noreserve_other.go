//go:build unix && !linux

package checkpoint

const noReserve = 0
