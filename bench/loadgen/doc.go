// Command loadgen measures a server of the MP protocol, ours or the real one,
// with a client that costs as little as possible: requests are encoded ahead,
// a prompt's token list is patched in place, and many are in flight on one
// connection. The same command line drives both servers, and bench/peer.sh
// alternates them.
//
//	loadgen --url tcp://127.0.0.1:6555 --ops ping --depth 64
//	loadgen --ops lookup --tokens 32768 --hit --layout tiny --prefill 2
//	loadgen --ops retrieve --layout llama8b --chunks 4 --prefill 3
//	loadgen --ops store --mode pickle --layout small --clients 4 --json
//
// What it measures mirrors load_real_client.py --raw, and so does its JSON:
// "lookup" is LOOKUP sent until the hit count is known, "store" PREPARE until
// the commit's answer, "retrieve" likewise, and "cycle" the whole request with
// FREE_LOOKUP_LOCKS and END_SESSION. Retrieved bytes are compared with what was
// stored, outside the timed part.
package main
