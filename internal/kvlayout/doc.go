// Package kvlayout turns the registration of an engine's KV cache into a
// [Layout]: which format its tensors have, which layers are copied together,
// where each block lies, and what an object holds. It is pure: no memory is
// mapped and no wire format is known here.
//
// [New] does everything, including all checks that do not depend on a request.
// What it accepts cannot address a byte outside the storages it was told of,
// as long as block ids stay below NumBlocks of their kernel group; package
// copyplan checks those.
//
//   - [Input]: the registration, as plain values;
//   - [Layout]: immutable; [KernelGroup] for addresses, [ObjectGroup] for objects;
//   - [Format]: the order of the axes, under the reference's names;
//   - [Form]: the order of the bytes in an object. Engines of one model may
//     differ in it; [Forms] gives each a number of one byte to keep beside the
//     object, and [Form.Convertible] says whether a reader can use it.
//
// A registration, from the wire to an instance:
//
//	l, err := kvlayout.New(kvlayout.Input{
//		Tensors: tensors, Engine: kvlayout.EngineVLLM, Hints: hints, Groups: groups,
//		ChunkTokens: 256, CPUEngine: noGPU, SeparateObjectGroups: false,
//	})
//	if err != nil {
//		return err // names the tensor or group, both numbers and the remedy
//	}
//	for o := range l.Object {
//		id, form, err := forms.Intern(l.Object[o].Form)
//		… // id is the order to reserve objects of group o with
//	}
//	for _, s := range l.Storages {
//		… // open s.Key with the device, in this order
//	}
//
// Head-major engines keep their objects in the order of their own blocks: a
// copy moves whole blocks, which is what copy engines do well. That order
// depends on the block size, so a form says more than "heads first".
package kvlayout
