package reclaimers

import (
	"sync"

	"github.com/linstock-ml/linstock/vram"
)

type cache struct {
	mu    sync.Mutex
	rw    sync.RWMutex
	items map[string]int
}

func (c *cache) literal() {
	vram.Register(vram.Reclaimer{Name: "cache", Reclaim: func(int64) {
		c.mu.Lock() // want `Reclaim of a vram.Reclaimer locks a mutex`
		defer c.mu.Unlock()
		clear(c.items)
	}})
}

func (c *cache) method() {
	vram.Register(vram.Reclaimer{"cache", 1, c.prepare, c.reclaim})
}

func (c *cache) prepare() {
	c.rw.RLock() // want `Prepare of a vram.Reclaimer locks a mutex`
	c.rw.RUnlock()
}

func (c *cache) reclaim(int64) { c.clear() }

func (c *cache) clear() {
	c.rw.Lock() // want `Reclaim of a vram.Reclaimer locks a mutex`
	defer c.rw.Unlock()
	clear(c.items)
}

var global sync.Locker = new(sync.Mutex)

func drop(int64) {
	global.Lock() // want `Reclaim of a vram.Reclaimer locks a mutex`
	global.Unlock()
}

func assigned() {
	r := vram.Reclaimer{Name: "cache"}
	r.Reclaim = drop
	p := &vram.Reclaimer{}
	p.Reclaim = drop // reported once
	vram.Register(r)
}

func (c *cache) fine() {
	vram.Register(vram.Reclaimer{Reclaim: func(int64) {
		if !c.mu.TryLock() {
			return
		}
		defer c.mu.Unlock()
		clear(c.items)
		go func() {
			c.mu.Lock() // nobody waits for it
			c.mu.Unlock()
		}()
	}})
	vram.Register(vram.Reclaimer{Reclaim: func(int64) {
		//linstockvet:ignore reclaimlock held for map operations alone
		c.mu.Lock()
		c.mu.Unlock()
	}})
	var other struct{ Reclaim func() }
	other.Reclaim = func() { c.mu.Lock() }
	c.mu.Lock()
	c.mu.Unlock()
}
