package wire

// AppendDeviceWrappers appends the kv_cache of register_kv_cache.
func AppendDeviceWrappers(dst []byte, ws []DeviceWrapper) []byte {
	dst = appendArrayHead(dst, len(ws))
	for i := range ws {
		dst = AppendDeviceWrapper(dst, &ws[i])
	}
	return dst
}

// AppendDeviceWrapper appends one wrapper, as an extension.
func AppendDeviceWrapper(dst []byte, w *DeviceWrapper) []byte {
	body := appendDeviceBody(nil, w)
	return append(appendExtHead(dst, deviceExt, len(body)), body...)
}

func appendDeviceBody(dst []byte, w *DeviceWrapper) []byte {
	own := map[string]int{TagCUDA: 1, TagCUDARaw: 3, TagCUDAVMM: 6, TagCPUShm: 2}[w.Source.Tag()]
	dst = appendMapHead(dst, 3+own)
	dst = AppendString(AppendString(dst, "type"), w.Source.Tag())
	dst = w.Source.append(dst)
	dst = AppendInt(AppendString(dst, "version"), wireVersion)
	m := &w.Metadata
	dst = appendMapHead(AppendString(dst, "metadata"), len(metadataNames))
	dst = AppendString(AppendString(dst, "dtype"), m.DType.Name)
	dst = AppendInts(AppendString(dst, "shape"), m.Shape)
	dst = AppendInts(AppendString(dst, "stride"), m.Stride)
	dst = AppendInt(AppendString(dst, "storage_offset"), m.StorageOffset)
	return AppendString(AppendString(dst, "device_uuid"), m.DeviceUUID)
}

// appendOptBytes appends bytes, or nil for nil.
func appendOptBytes(dst, p []byte) []byte {
	if p == nil {
		return AppendNil(dst)
	}
	return AppendBytes(dst, p)
}

func (c *CUDAStorage) append(dst []byte) []byte {
	dst = appendArrayHead(AppendString(dst, "handle"), 8)
	dst = appendOptBytes(AppendInt(dst, c.Ordinal), c.Handle)
	dst = AppendInt(AppendInt(dst, c.SizeBytes), c.OffsetBytes)
	dst = AppendInt(appendOptBytes(dst, c.RefCounterHandle), c.RefCounterOffset)
	return AppendBool(appendOptBytes(dst, c.EventHandle), c.EventSync)
}

func (c *CUDARaw) append(dst []byte) []byte {
	dst = AppendBytes(AppendString(dst, "ipc_handle"), c.Handle[:])
	dst = AppendInt(AppendString(dst, "alloc_offset"), c.OffsetBytes)
	return AppendInt(AppendString(dst, "nbytes"), c.SizeBytes)
}

func (c *CUDAVMM) append(dst []byte) []byte {
	kind := "posix_fd"
	if c.FabricBlob != nil {
		kind = "fabric"
	}
	dst = AppendBytes(AppendString(dst, "export_id"), c.ExportID[:])
	dst = AppendString(AppendString(dst, "kind"), kind)
	dst = appendOptBytes(AppendString(dst, "fabric_blob"), c.FabricBlob)
	dst = AppendInt(AppendString(dst, "alloc_size"), c.AllocSizeBytes)
	dst = AppendInt(AppendString(dst, "alloc_offset"), c.OffsetBytes)
	return AppendInt(AppendString(dst, "nbytes"), c.SizeBytes)
}

func (c *CPUShm) append(dst []byte) []byte {
	dst = AppendString(AppendString(dst, "shm_name"), c.Name)
	return AppendInt(AppendString(dst, "nbytes"), c.SizeBytes)
}
