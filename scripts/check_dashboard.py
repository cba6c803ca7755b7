#!/usr/bin/env python3
"""Uses the dashboard of `weir serve` in a headless Chromium as a person would: it loads, asks and stops, gives a key, changes the
theme and the width, and leaves pictures to look at. Prints a line per check; the exit status is 1 where one failed.

usage: check_dashboard.py WEIR MODEL [--pictures FOLDER] [OPTION OF WEIR SERVE...]

Needs Debian's chromium, chromium-driver and python3-selenium; installs nothing."""
import argparse
import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    sys.exit('check_dashboard.py: needs a browser to look through: apt-get install chromium chromium-driver python3-selenium')

# Of text on what it lies on, by WCAG's formula; AA asks for 4.5.
CONTRAST = """
const luminance = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
  return .2126 * r + .7152 * g + .0722 * b; };
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); }
  return [255, 255, 255]; };
const found = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim() !== '');
  if (!own || e.offsetParent === null || ['SCRIPT', 'STYLE'].includes(e.tagName)) continue;
  const a = luminance(parse(getComputedStyle(e).color).slice(0, 3)), b = luminance(behind(e));
  const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (contrast < 4.5) found.push([e.id || e.className || e.tagName, e.textContent.slice(0, 30), contrast.toFixed(2)]);
}
return found;"""
# Elements that reach out of the page, and cards that lie on one another.
OVERLAPS = """
const wide = document.documentElement.clientWidth, found = [];
for (const e of document.querySelectorAll('header *, main *')) {
  const box = e.getBoundingClientRect();
  if (box.width > 0 && (box.right > wide + .5 || box.left < -.5)) found.push('outside: ' + (e.id || e.className || e.tagName));
}
const cards = [...document.querySelectorAll('.card')].filter((c) => c.offsetParent !== null);
cards.forEach((c, i) => { const a = c.getBoundingClientRect(); cards.slice(i + 1).forEach((d) => { const b = d.getBoundingClientRect();
  if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
    found.push('on one another: ' + c.textContent.trim().slice(0, 20) + ' / ' + d.textContent.trim().slice(0, 20)); }); });
for (const e of document.querySelectorAll('.big, #facts, dd, dt, button')) {
  if (e.offsetParent !== null && e.scrollWidth > e.clientWidth + 1) found.push('cut off: ' + (e.id || e.textContent.trim().slice(0, 20)));
}
return found;"""

# A small model may go on for ever: the page's next question asks for a few tokens only.
BRIEF = """
const plain = window.fetch;
window.fetch = (path, options) => {
  if (!options.body) return plain(path, options);
  window.fetch = plain;
  return plain(path, {...options, body: JSON.stringify({...JSON.parse(options.body), max_tokens: 24})});
};"""


class Serve:
    def __init__(self, options):
        self.process = subprocess.Popen(options, stderr=subprocess.PIPE, text=True)
        self.url = None
        for line in self.process.stderr:
            found = re.search(r'http://[^:]+:\d+', line)
            self.url = found[0] if found else self.url
            if 'ready after' in line:
                break
        else:
            sys.exit(f'check_dashboard.py: {" ".join(options)} ended with {self.process.wait()}')
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


class Browser:
    def __init__(self, pictures):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which('chromium')
        for option in ('--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars', '--no-proxy-server'):
            options.add_argument(option)
        options.set_capability('goog:loggingPrefs', {'browser': 'ALL', 'performance': 'ALL'})
        self.driver = webdriver.Chrome(service=Service(shutil.which('chromedriver')), options=options)
        self.pictures = pictures
        self.requests = set()

    def __getitem__(self, name):
        return self.driver.find_element(By.ID, name)

    def text(self, name):
        return self.driver.execute_script('return document.getElementById(arguments[0]).textContent', name)

    def size(self, width, height, phone=False):
        self.driver.execute_cdp_cmd('Emulation.setDeviceMetricsOverride',
                                    {'width': width, 'height': height, 'deviceScaleFactor': 2 if phone else 1, 'mobile': phone})

    def prefer(self, scheme):
        self.driver.execute_cdp_cmd('Emulation.setEmulatedMedia', {'features': [{'name': 'prefers-color-scheme', 'value': scheme}]})

    def picture(self, name, whole=False):
        if self.pictures:
            params = {'captureBeyondViewport': True} if whole else {}
            data = self.driver.execute_cdp_cmd('Page.captureScreenshot', params)['data']
            with open(os.path.join(self.pictures, name + '.png'), 'wb') as out:
                out.write(base64.b64decode(data))

    def until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.1)
        return False

    def said(self, turn=-1):
        turns = self.driver.find_elements(By.CSS_SELECTOR, '.turn.assistant')
        return (turns[turn].find_element(By.CLASS_NAME, 'text').text, turns[turn].text) if turns else ('', '')

    def ask(self, text):
        self['chat-text'].send_keys(text, Keys.ENTER)

    def answering(self):
        return self['chat-stop'].is_displayed()

    def pixels(self):
        return self.driver.execute_script("return document.getElementById('map').toDataURL()")

    def errors(self):
        """Of the console: those that the page made, not the answers that it is given on purpose."""
        return [e['message'] for e in self.driver.get_log('browser') if e['level'] in ('SEVERE', 'WARNING') and ' 401 ' not in e['message']]


def check_answers(browser, say):
    say(browser.until(lambda: browser.text('state') == 'idle'), 'it loads', browser.text('state'))
    say(browser.text('facts').count('·') >= 4 and browser.text('drift').startswith('not measured'), 'it says what is served', browser.text('facts'))
    before = browser.pixels()
    browser.driver.execute_script(BRIEF)
    browser.ask('What is the capital of France?')
    say(browser.until(lambda: browser.said()[0] != ''), 'an answer streams', browser.said())
    say(browser.until(lambda: browser.text('state').startswith('answering'), 10) or not browser.answering(), 'and is seen to be under way', browser.text('state'))
    say(browser.until(lambda: not browser.answering(), 120) and 'tokens/s' in browser.said()[1], 'it ends with its figures', browser.said())
    browser.ask('Write a very long story about a river and all who live by it. Do not stop.')
    browser.until(lambda: len(browser.said()[0]) > 60)
    say(browser.pixels() != before, 'the map moves')
    browser.until(lambda: browser.text('speed') not in ('–', '0.00'), 10)
    time.sleep(3)
    say(float(browser.text('speed').replace(',', '')) > 0 and browser.text('entropy') != '–', 'figures', (browser.text('speed'), browser.text('entropy')))
    browser.picture('desktop-light')
    browser['theme'].click()
    browser['theme'].click()
    say(browser.text('theme') == 'Theme: dark', 'the theme is changed', browser.text('theme'))
    browser.picture('desktop-dark')
    say(not browser.driver.execute_script(CONTRAST), 'contrast, dark', browser.driver.execute_script(CONTRAST))
    browser['theme'].click()
    if browser.answering():
        browser['chat-stop'].click()
    say(browser.until(lambda: not browser.answering(), 10) and browser.until(lambda: browser.text('state') == 'idle', 30), 'Stop frees the slot', browser.text('state'))
    say(not browser.driver.execute_script(CONTRAST), 'contrast, light', browser.driver.execute_script(CONTRAST))
    browser.driver.execute_script("document.getElementById('map').focus()")
    browser['map'].send_keys(Keys.ARROW_RIGHT)
    say(browser.text('map-readout').startswith('Layer 0'), 'a cell says what it is', browser.text('map-readout'))
    browser['map'].send_keys(Keys.ESCAPE)


def check_sizes(browser, say):
    for width, height, phone in ((1440, 900, False), (1100, 800, False), (768, 1024, True), (390, 844, True)):
        browser.size(width, height, phone)
        for scheme in ('light', 'dark'):
            browser.prefer(scheme)
            time.sleep(1.2)
            say(not browser.driver.execute_script(OVERLAPS), f'{width} wide, {scheme}: all has its place', browser.driver.execute_script(OVERLAPS))
            dark = browser.driver.execute_script("return document.documentElement.dataset.theme")
            say(dark == scheme, 'in the colours that the system prefers', dark)
            browser.picture(f'width-{width}-{scheme}', whole=True)
    browser.prefer('light')
    browser.size(1440, 900)


def check_hidden(browser, url, say):
    def asked():
        return sum('/dashboard/data' in e['message'] and 'Network.requestWillBeSent"' in e['message'] for e in browser.driver.get_log('performance'))
    time.sleep(3)
    say(asked() >= 2, 'it asks again and again')
    browser.driver.execute_script("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))")
    time.sleep(1)
    asked()
    time.sleep(3)
    say(asked() == 0, 'and not while nobody looks')
    browser.driver.execute_script("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    time.sleep(2)
    say(asked() >= 1, 'and again when somebody does')
    outside = [e['message'][:200] for e in browser.driver.get_log('performance') if 'Network.requestWillBeSent"' in e['message'] and url not in e['message']]
    say(not outside, 'of nobody else', outside)


def check_key(browser, say):
    say(browser.until(lambda: browser['key-form'].is_displayed()), 'a key is asked for')
    browser.picture('key')
    browser['key'].send_keys('wrong', Keys.ENTER)
    say(browser.until(lambda: browser['key-error'].is_displayed()), 'a wrong one is not taken')
    browser['key'].send_keys('secret', Keys.ENTER)
    say(browser.until(lambda: browser.text('state') == 'idle') and not browser['key-form'].is_displayed(), 'the right one is', browser.text('state'))
    browser.ask('Say yes.')
    say(browser.until(lambda: browser.said()[0] != ''), 'and answers come', browser.said())
    kept = browser.driver.execute_script("return [sessionStorage.getItem('weir-api-key'), JSON.stringify(localStorage) + document.cookie]")
    say(kept[0] == 'secret' and 'secret' not in kept[1], 'it is kept in this tab alone', kept)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('weir')
    parser.add_argument('model')
    parser.add_argument('--pictures', help='a folder for them')
    arguments, options = parser.parse_known_args()
    if not shutil.which('chromium') or not shutil.which('chromedriver'):
        sys.exit('check_dashboard.py: needs a browser to look through: apt-get install chromium chromium-driver python3-selenium')
    failed = []

    def say(right, what, detail=None):
        print(f'{"ok" if right else "NOT OK"}: {what}' + ('' if right else f'  {str(detail)[:600]}'), flush=True)
        failed.extend([] if right else [what])

    if arguments.pictures:
        os.makedirs(arguments.pictures, exist_ok=True)
    serve = [arguments.weir, 'serve', arguments.model, '--port', '0', '-c', '2048', *(options or ['--weights-ram', '50%'])]
    browser = Browser(arguments.pictures)
    try:
        server = Serve(serve)
        browser.size(1440, 900)
        browser.driver.get(server.url)
        check_answers(browser, say)
        check_sizes(browser, say)
        check_hidden(browser, server.url, say)
        say(not (errors := browser.errors()), 'nothing is amiss in the console', errors)
        server.stop()
        say(browser.until(lambda: 'not to be reached' in browser.text('state'), 20), 'it says when the server is gone', browser.text('state'))
        browser.picture('gone')
        browser.driver.get_log('browser')
        with tempfile.NamedTemporaryFile('w') as keys:
            keys.write('secret\n')
            keys.flush()
            server = Serve([*serve, '--api-key-file', keys.name])
            browser.driver.get(server.url)
            check_key(browser, say)
            say(not (errors := browser.errors()), 'nothing is amiss in the console', errors)
            server.stop()
    finally:
        browser.driver.quit()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
