/**
 * Computes the golden vectors of the protocol from fixed seeds. Run by itself it prints them; vectors.json holds what was
 * agreed on. A difference is a change of the protocol: never write the file anew to make a test pass.
 */
import { encode } from '../../protocol/codec.ts';
import { channelHeader } from '../../protocol/channel.ts';
import { AxError } from '../../protocol/errors.ts';
import { encodeFrame } from '../../protocol/frame.ts';
import { encodeSigned, sha256, signGroup, signOne } from '../../protocol/hashtree.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import { makeMessageId, makeUuid } from '../../protocol/ids.ts';
import { signCancel, signReceipt } from '../../protocol/receipt.ts';
import { openHeaders, SealKeys, unwrapKey } from '../../protocol/seal.ts';
import { CONTROL_PROTOCOL } from '../../protocol/version.ts';
import { encodeHello, encodeHelloAnswer, encodeRefusal, encodeRequest } from '../../protocol/wire.ts';
import { ALICE, aliceKeys, AT, BOB, counted, draft, hex, ID, OTHER_ID, sealed, sealRandom, SESSION, toBob, utf8 } from './sample.ts';

/** Every vector, bytes as hex, text as it is. */
export function computeVectors(): Record<string, Record<string, unknown>> {
  return {
    ids: ids(),
    identity: identity(),
    hashtree: hashtree(),
    seal: seal(),
    envelope: envelope(),
    signed: signed(),
    wire: wire(),
    control: control(),
  };
}

function ids(): Record<string, unknown> {
  return {
    time_ms: AT,
    random: hex(counted(10)),
    message_id: makeMessageId(AT, counted(10)),
    uuid_random: hex(counted(16)),
    uuid: makeUuid(counted(16)),
  };
}

function identity(): Record<string, unknown> {
  const hosts = [1, 2].map((start) => {
    const key = hostKeyFromSeed(counted(32, start));
    return { seed: hex(key.seed), public_key: hex(key.publicKey), host_id: key.hostId };
  });
  return { hosts, signed_text: 'ax', signature: hex(ALICE.sign(utf8('ax'))) };
}

function hashtree(): Record<string, unknown> {
  const payloads = ['one', 'two', 'three'].map(utf8);
  const group = signGroup(ALICE, 'ax/1 receipt', payloads);
  const leaves = payloads.map((payload) => sha256(Uint8Array.of(0), payload));
  const left = sha256(Uint8Array.of(1), leaves[0]!, leaves[1]!);
  const contexts = (['ax/1 envelope', 'ax/1 receipt', 'ax/1 cancel'] as const).map((context) => [
    context,
    hex(signOne(ALICE, context, utf8('one')).signature),
  ]);
  return {
    signer_seed: hex(ALICE.seed),
    payloads: payloads.map(hex),
    leaves: leaves.map(hex),
    root: hex(sha256(Uint8Array.of(1), left, leaves[2]!)),
    group_context: 'ax/1 receipt',
    group_signature: hex(group[0]!.signature),
    paths: group.map((member) => member.path.map((step) => ({ left: step.left, hash: hex(step.hash) }))),
    second_member_encoded: hex(encodeSigned(group[1]!)),
    signature_of_one_in_context: Object.fromEntries(contexts),
  };
}

function seal(): Record<string, unknown> {
  const pair = aliceKeys.with(BOB.hostId);
  const message = sealed();
  const contentKey = unwrapKey(pair, message.envelope.wrap);
  const place = { id: ID, from: ALICE.hostId, to: BOB.hostId, count: 1 };
  return {
    seeds: [hex(ALICE.seed), hex(BOB.seed)],
    pair_key: hex(pair),
    pair_key_of_the_other_side: hex(new SealKeys(BOB).with(ALICE.hostId)),
    random: hex(sealRandom),
    content_key: hex(contentKey),
    wrap: hex(message.envelope.wrap),
    message_id: ID,
    headers_plain: hex(openHeaders(contentKey, place, message.envelope.headers)),
    headers_sealed: hex(message.envelope.headers),
    piece_plain: hex(draft.body),
    piece_sealed: hex(message.pieces[0]!),
  };
}

function envelope(): Record<string, unknown> {
  const message = sealed();
  return {
    sender_seed: hex(ALICE.seed),
    destination: toBob,
    sent_at: AT,
    payload: hex(message.signed.payload),
    digest: hex(message.digest),
    signed: hex(encodeSigned(message.signed)),
  };
}

function signed(): Record<string, unknown> {
  const digest = sealed().digest;
  const receipt = signReceipt(BOB, {
    outcome: 'accepted',
    id: ID,
    digest,
    sender: ALICE.hostId,
    at: AT,
    state: 'available',
    storedAs: 'message',
    liveSession: true,
    certain: false,
  });
  const cancel = signCancel(ALICE, { id: ID, digest, receiver: BOB.hostId, at: AT });
  return {
    receiver_seed: hex(BOB.seed),
    receipt_payload: hex(receipt.payload),
    receipt: hex(encodeSigned(receipt)),
    cancel_payload: hex(cancel.payload),
    cancel: hex(encodeSigned(cancel)),
  };
}

function wire(): Record<string, unknown> {
  const message = sealed();
  const hello = { range: { min: 1, max: 1 }, version: '0.1.0', nonce: 'n0nce' };
  const deliver = encodeRequest({ type: 'deliver', envelope: message.signed, pieces: message.pieces });
  return {
    hello: hex(encodeHello(hello)),
    hello_answer: hex(encodeHelloAnswer({ ...hello, known: true, duplicate: false })),
    hello_frame: hex(encodeFrame(Buffer.concat([channelHeader('request', 1), encodeHello(hello)]))),
    deliver: hex(deliver),
    progress: hex(encodeRequest({ type: 'progress', ids: [ID, OTHER_ID] })),
    sessions: hex(encodeRequest({ type: 'sessions' })),
    pair: hex(
      encodeRequest({ type: 'pair', invite: 'AAECAwQFBgcI', secret: counted(32), name: 'build', addresses: ['/ip4/192.0.2.7/tcp/19264'] }),
    ),
    refusal: hex(encodeRefusal(new AxError('throttled', 'never told', { details: { retry_after_ms: 5000 } }))),
    pairing_code: `ax1-${Buffer.from(encode({ h: BOB.hostId, a: ['/ip4/192.0.2.7/tcp/19264'], i: 'AAECAwQFBgcI', s: counted(32) })).toString('base64url')}`,
  };
}

function control(): Record<string, unknown> {
  const origin = { harness: null, harness_version: null, session_id: null, workspace: '/w', integration: 'cli' };
  const session = { harness: 'claude', session_id: SESSION, pid: 4242, socket: '/tmp/s/4242.sock', config_dir: null };
  const request = { v: CONTROL_PROTOCOL, id: 7, method: 'message.fetch', params: { id: ID }, origin, session };
  return { request_frame: hex(encodeFrame(encode(request))) };
}

if (import.meta.main) console.log(JSON.stringify(computeVectors(), null, 2));
