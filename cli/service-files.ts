/**
 * The text of the files that have a user's own service manager run the daemon: a systemd user unit, and a launchd agent.
 *
 * Owns what stands in them and how paths are quoted there; pure. Both start the daemon's program itself by absolute paths, again after a
 * failure and not after a stop, with a private umask; neither holds a secret. A first line tells that ax wrote the file.
 */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { AxError } from '../protocol/errors.ts';

export interface ServiceFacts {
  /** Absolute. */
  readonly node: string;
  readonly program: string;
  readonly stateDir: string;
  /** Then the service has the plain name. */
  readonly isUsualStateDir: boolean;
  /** Paths the daemon finds harnesses by: CLAUDE_CONFIG_DIR, CODEX_HOME. */
  readonly environment: Readonly<Record<string, string>>;
}

export interface ServiceFile {
  readonly kind: 'systemd' | 'launchd';
  /** What the service manager calls it. */
  readonly unit: string;
  readonly path: string;
  readonly text: string;
}

/** The line every such file of ours holds. */
export const MARK = 'Written by `ax daemon install`; `ax daemon uninstall` removes it.';

/** `configHome`: $XDG_CONFIG_HOME or ~/.config. AxError `invalid_state` for a path that a unit cannot hold. */
export function systemdUnit(facts: ServiceFacts, configHome: string): ServiceFile {
  const unit = `${nameOf(facts)}.service`;
  if (facts.node.includes('$')) throw new AxError('invalid_state', `a unit cannot start ${facts.node}: there is a "$" in its path`);
  const environment = Object.entries(facts.environment).map(([name, value]) => `Environment=${quoted(`${name}=${value}`)}`);
  const text = [
    `# ${MARK}`,
    '[Unit]',
    'Description=ax, messages between coding agents',
    'StartLimitIntervalSec=300',
    'StartLimitBurst=10',
    '',
    '[Service]',
    // Of a command line, and of nothing else, `$` names a variable.
    `ExecStart=${wordsOf(facts)
      .map((word) => quoted(word).replaceAll('$', '$$$$'))
      .join(' ')}`,
    ...environment,
    'Restart=on-failure',
    'RestartSec=5',
    'UMask=0077',
    'TimeoutStopSec=45',
    '',
    '[Install]',
    'WantedBy=default.target',
    '',
  ].join('\n');
  return { kind: 'systemd', unit, path: join(configHome, 'systemd', 'user', unit), text };
}

export function launchdAgent(facts: ServiceFacts, home: string): ServiceFile {
  const label = `agent-exchange.${nameOf(facts)}`;
  const entry = (key: string, value: string): string => `  <key>${key}</key>\n  ${value}`;
  const string = (value: string): string => `<string>${escaped(value)}</string>`;
  const variables = Object.entries(facts.environment).map(([name, value]) => `<key>${name}</key>${string(value)}`);
  const log = string(join(facts.stateDir, 'daemon.log'));
  const text = [
    '<?xml version="1.0" encoding="UTF-8"?>',
    '<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">',
    `<!-- ${MARK} -->`,
    '<plist version="1.0">',
    '<dict>',
    entry('Label', string(label)),
    entry('ProgramArguments', `<array>${wordsOf(facts).map(string).join('')}</array>`),
    ...(variables.length > 0 ? [entry('EnvironmentVariables', `<dict>${variables.join('')}</dict>`)] : []),
    entry('RunAtLoad', '<true/>'),
    entry('KeepAlive', '<dict><key>SuccessfulExit</key><false/></dict>'),
    entry('ThrottleInterval', '<integer>10</integer>'),
    entry('Umask', `<integer>${0o077}</integer>`),
    entry('ProcessType', '<string>Background</string>'),
    entry('StandardErrorPath', log),
    '</dict>',
    '</plist>',
    '',
  ].join('\n');
  return { kind: 'launchd', unit: label, path: join(home, 'Library', 'LaunchAgents', `${label}.plist`), text };
}

/** Each state folder is a host of its own, so each has a service of its own. */
function nameOf({ stateDir, isUsualStateDir }: ServiceFacts): string {
  return isUsualStateDir ? 'ax' : `ax-${createHash('sha256').update(stateDir).digest('hex').slice(0, 8)}`;
}

function wordsOf({ node, program, stateDir }: ServiceFacts): string[] {
  const words = [node, program, '--state-dir', stateDir];
  const odd = words.find((word) => /\p{Cc}|\p{Cs}/u.test(word));
  if (odd !== undefined) throw new AxError('invalid_state', 'a path with control characters cannot stand in a service file');
  return words;
}

/** As systemd reads a quoted word: `%` begins a specifier, `\` an escape. */
function quoted(word: string): string {
  if (/\p{Cc}/u.test(word)) throw new AxError('invalid_state', 'a path with control characters cannot stand in a service file');
  return `"${word.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('%', '%%')}"`;
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
