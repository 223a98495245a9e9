/**
 * Signing in groups: what this host signs at the same moment shares one signature, over a hash tree of all of it.
 *
 * Owns the payloads that wait for it; each still verifies alone and for ever. Nothing waits for time: a group is what has come until the
 * first of it is asked for, which for envelopes is the commit that stores them and for receipts the end of the turn they were made in.
 * Invariant: a payload is signed once, in the group that was open when it came.
 */
import { signGroup } from '../protocol/hashtree.ts';
import type { Signed, SigningContext } from '../protocol/hashtree.ts';
import type { HostKey } from '../protocol/identity.ts';

/** Longest group: the path of each member then has 8 steps. */
const MAX_GROUP = 256;

interface Group {
  readonly payloads: Uint8Array[];
  signed: readonly Signed[] | undefined;
}

export class GroupSigner {
  readonly #key: HostKey;
  readonly #context: SigningContext;
  #open: Group = { payloads: [], signed: undefined };

  constructor(key: HostKey, context: SigningContext) {
    this.#key = key;
    this.#context = context;
  }

  /** Takes a payload into the open group. The first call of any member's result signs the group and closes it. */
  enlist(payload: Uint8Array): () => Signed {
    const group = this.#open;
    const index = group.payloads.push(payload) - 1;
    if (group.payloads.length === MAX_GROUP) this.#open = { payloads: [], signed: undefined };
    return () => {
      if (this.#open === group) this.#open = { payloads: [], signed: undefined };
      group.signed ??= signGroup(this.#key, this.#context, group.payloads);
      return group.signed[index]!;
    };
  }
}
