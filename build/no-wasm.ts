/**
 * `make build`: stands in the daemon's bundle for the two WebAssembly modules that Noise brings.
 *
 * The library sets both up when it is loaded, which costs a daemon 3 MiB and never pays: daemon/link/records.ts has the records enciphered by
 * node:crypto, and the library hashes with that itself. What it sets up when it is loaded is here and does nothing; `seal`, `open` and `digest`
 * are never called, and throw.
 */
const unused = (): never => {
  throw new Error('the WebAssembly of Noise is not in this bundle');
};

export const newInstance = (): undefined => undefined;
export const digest = unused;

export class ChaCha20Poly1305 {
  readonly seal = unused;
  readonly open = unused;
}
