/**
 * The oracle's part about bodies in several pieces: what is half here is no message, and what is a message is whole.
 *
 * Owns: a piece that was answered as stored is durable; a row that says so has all its pieces on the disk, in the very image that holds the
 * row; no piece lies there that belongs to nothing; what one host has half here is bounded. Reads the disks and answers only.
 */
import type { Begun } from '../../daemon/arriving.ts';
import type { Received } from '../../daemon/received-row.ts';
import { bodyKey, pieceKey, unpack } from '../../daemon/store/rows.ts';
import type { Fields } from '../../protocol/codec.ts';
import { readEnvelope } from '../../protocol/envelope.ts';
import type { HostId } from '../../protocol/ids.ts';
import { MAX_ARRIVING_PER_PEER, MAX_PIECES } from '../../protocol/limits.ts';
import { readMissing } from '../../protocol/wire.ts';
import type { WireRequest } from '../../protocol/wire.ts';
import type { Checker } from './checker.ts';
import type { Disk } from './disk.ts';
import type { Host } from './fleet.ts';

export class PieceRules {
  readonly #checker: Checker;

  constructor(checker: Checker) {
    this.#checker = checker;
  }

  /** An answer about pieces: true when it says nothing else. */
  answered(host: Host, peer: HostId, request: WireRequest, fields: Fields): boolean {
    const { fleet } = this.#checker;
    if (request.type === 'piece') {
      fleet.count(fields['stored'] === true ? 'piece stored' : 'piece unwanted');
      const { id, index } = request;
      const isThere = (disk: Disk): boolean => disk.has('inbox_body', bodyKey(peer, id, index));
      // What was half here goes with a host that is removed; added again, it may have begun anew.
      const before = this.#checker.disk(host).removals(peer);
      const isOver = (disk: Disk): boolean =>
        disk.seen(peer, id) !== undefined || !disk.has('arriving', `r/${peer}/${id}`) || disk.removals(peer) > before;
      if (fields['stored'] === true)
        this.#checker.promise(host, `piece ${index} of ${id} was taken, so it is durable`, (disk) => isThere(disk) || isOver(disk));
      return true;
    }
    if (request.type !== 'deliver' && request.type !== 'offer') return false;
    const missing = readMissing(fields, MAX_PIECES);
    if (missing === undefined) return false;
    const count = readEnvelope(request.envelope.payload).pieces.length;
    fleet.count(
      `${request.type} answered ${missing.length === count ? 'all missing' : missing.length === 0 ? 'none missing' : 'some missing'}`,
    );
    return true;
  }

  /** A piece leaves: its message is durable and says that bytes may have left. */
  leaving(host: Host, request: WireRequest & { readonly type: 'piece' }): void {
    if (this.#checker.disk(host).sent(request.id)?.uncertain !== true)
      this.#checker.fail('a piece leaves only when its message is durable and marked uncertain', `${host.name} ${request.id}`);
  }

  /** The image of one disk. */
  sample(host: Host, disk: Disk): void {
    const known = new Set<string>();
    for (const row of disk.allReceived()) this.#whole(host, disk, row, known);
    const halves = disk.entries('arriving', 'r/').map((entry) => unpack<Begun>(entry.value));
    for (const [sender, all] of Map.groupBy(halves, (row) => row.sender))
      if (all.length > MAX_ARRIVING_PER_PEER)
        this.#checker.fail('what a host has half here is bounded', `${host.name} ${sender}: ${all.length}`);
    for (const { sender, id, count } of halves) {
      if (disk.seen(sender, id) !== undefined) this.#checker.fail('what was taken or cancelled is not half here', `${host.name} ${id}`);
      for (let index = 0; index < count; index++) known.add(bodyKey(sender, id, index));
    }
    const staged = new Set(disk.entries('arriving', 's/').map((entry) => entry.key.slice(2)));
    for (const { key } of disk.entries('inbox_body', 'p/'))
      if (!known.has(key) && !staged.has(key.split('/')[2] ?? ''))
        this.#checker.fail('no piece stays that belongs to nothing', `${host.name} ${key}`);
    for (const { key } of disk.entries('outbox_body', '')) {
      const id = key.split('/')[0]!;
      const row = disk.sent(id);
      if (row === undefined && !staged.has(id)) this.#checker.fail('no piece stays that belongs to nothing', `${host.name} ${key}`);
      if (row?.acceptedAt !== null && row !== undefined)
        this.#checker.fail('what was accepted is not kept at its sender', `${host.name} ${key}`);
    }
    for (const row of disk.allSent()) {
      if (row.pieces === undefined || row.local || !['queued', 'forwarding', 'deferred'].includes(row.state)) continue;
      for (let index = 0; index < row.pieces; index++)
        if (!disk.has('outbox_body', pieceKey(row.id, index)))
          this.#checker.fail('what waits at its sender is whole', `${host.name} ${row.id}`);
    }
  }

  #whole(host: Host, disk: Disk, row: Received, known: Set<string>): void {
    if (row.pieces === undefined) return;
    const isKept = row.bodyKept && row.state !== 'cancelled';
    for (let index = 0; index < row.pieces && isKept; index++) {
      const key = bodyKey(row.sender, row.id, index);
      known.add(key);
      if (!disk.has('inbox_body', key))
        this.#checker.fail('a message is accepted whole or not at all', `${host.name} ${row.id} lacks ${index}`);
    }
  }
}
