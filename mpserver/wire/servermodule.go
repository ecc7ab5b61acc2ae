package wire

// ModuleCall is the argument of server_module_call.
type ModuleCall struct {
	Method string
	// Payload is a view into the frame when decoded.
	Payload []byte
}

var moduleCallNames = []string{"method", "payload"}

// DecodeModuleCall reads the argument of server_module_call.
func DecodeModuleCall(frame []byte) (ModuleCall, error) {
	r := reader{b: frame}
	var c ModuleCall
	r.object("request", moduleCallNames, 1<<2-1, func(i int) {
		if i == 0 {
			r.set(&c.Method)
		} else {
			c.Payload = r.bin()
		}
	})
	return c, r.done()
}

// AppendModuleCall appends the argument of server_module_call.
func AppendModuleCall(dst []byte, c ModuleCall) []byte {
	dst = AppendString(AppendString(appendMapHead(dst, 2), "method"), c.Method)
	return AppendBytes(AppendString(dst, "payload"), c.Payload)
}

// ModuleReply is the reply to server_module_call.
type ModuleReply struct {
	Success bool
	// Payload is a view into the frame when decoded.
	Payload []byte
	Error   string
}

var moduleReplyNames = []string{"success", "payload", "error"}

// DecodeModuleReply reads the reply to server_module_call.
func DecodeModuleReply(frame []byte) (ModuleReply, error) {
	r := reader{b: frame}
	var m ModuleReply
	r.object("reply", moduleReplyNames, 1<<3-1, func(i int) {
		switch i {
		case 0:
			m.Success = r.bool()
		case 1:
			m.Payload = r.bin()
		case 2:
			r.set(&m.Error)
		}
	})
	return m, r.done()
}

// AppendModuleReply appends the reply to server_module_call.
func AppendModuleReply(dst []byte, m ModuleReply) []byte {
	dst = AppendBool(AppendString(appendMapHead(dst, 3), "success"), m.Success)
	dst = AppendBytes(AppendString(dst, "payload"), m.Payload)
	return AppendString(AppendString(dst, "error"), m.Error)
}
